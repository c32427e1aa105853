// SPDX-License-Identifier: Apache-2.0
#include "engine/fault_messages.h"

#include <chrono>

#include "engine/late_watch.h"

namespace smdist {
namespace {

std::string text_of(std::chrono::milliseconds time) {
  const auto count = time.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string timeout_text(const RankNames& names, const Submission& submission) {
  return title_of(submission) + ": the timeout of " + text_of(submission.operation.timeout) +
         " has expired on " + names.own();
}

// Returns the lowest rank that has not posted the operation; if all have, the lowest of those whose
// data are missing.
int culprit_of(const LateRanks& late, int own_rank) {
  for (const auto& [rank, state] : late) {
    if (!state.has_come) return rank;
  }
  return late.empty() ? own_rank : late.begin()->first;
}

}  // namespace

std::string title_of(const Submission& submission) {
  const OperationId& id = submission.id;
  const bool is_unmatched = id.role == Role::kReceive && id.peer < 0;
  const std::string what = is_unmatched ? "a message with tag " + std::to_string(id.channel) +
                                              " of group " + std::to_string(id.group)
                                        : text_of(id);
  return what + ", " + text_of(submission.descriptor);
}

Fault out_of_memory(const RankNames& names, const Submission& submission, size_t bytes) {
  return {FaultKind::kSystem, names.own_rank(),
          title_of(submission) + ": " + names.own() + " could not allocate the " +
              std::to_string(bytes) + " bytes of scratch memory for this operation",
          name_of(submission.operation.kind)};
}

Fault protocol_error(const RankNames& names, int peer, const std::string& predicate) {
  return {FaultKind::kPeer, peer, names.of(peer) + " " + predicate};
}

Fault peer_lost(const RankNames& names, const Submission& submission, FaultKind kind, int peer,
                const std::string& reason, bool has_sent_all) {
  return {kind, peer,
          title_of(submission) + ": " + names.of(peer) + " " + reason +
              (has_sent_all ? " before it received its share of the data"
                            : " before it sent its share of the data"),
          name_of(submission.operation.kind)};
}

Fault never_connected(const RankNames& names, const Submission& submission, int peer,
                      const std::string& reason) {
  return {FaultKind::kLost, peer, title_of(submission) + ": " + names.of(peer) + " " + reason,
          name_of(submission.operation.kind)};
}

Fault sender_lost(const RankNames& names, const Submission& receive, FaultKind kind, int peer,
                  const std::string& reason) {
  return {kind, peer,
          title_of(receive) + ": " + names.of(peer) + " " + reason +
              " before it sent a message for this receive",
          name_of(receive.operation.kind)};
}

Fault operation_timed_out(const RankNames& names, const Submission& submission,
                          const LateRanks& late) {
  const char* hint = submission.id.role == Role::kCollective
                         ? "Every rank must call the same collectives"
                         : "Every send needs a matching receive";
  return {FaultKind::kTimeout, culprit_of(late, names.own_rank()),
          timeout_text(names, submission) + ", which waits for " + text_of(names, late) + ". " +
              hint + ". If a rank is only slow, set a longer timeout",
          name_of(submission.operation.kind), json_of(late)};
}

Fault receive_timed_out(const RankNames& names, const Submission& receive) {
  return {
      FaultKind::kTimeout, names.own_rank(),
      timeout_text(names, receive) +
          ", and no rank has sent a message for it. Every receive needs a matching send. If the "
          "sender is only slow, set a longer timeout",
      name_of(receive.operation.kind)};
}

// Names the lower rank last, so that both ranks write the same sentence.
Fault descriptor_mismatch(const RankNames& names, const OperationId& id, const Descriptor& ours,
                          int peer, const Descriptor& theirs) {
  const std::string our_call = names.own() + " called " + text_of(ours);
  const std::string their_call = names.of(peer) + " called " + text_of(theirs);
  const bool is_lower = names.own_rank() < peer;
  return {FaultKind::kUsage, peer,
          (is_lower ? their_call : our_call) + " while " + (is_lower ? our_call : their_call) +
              " as " + text_of(id) +
              (have_other_layouts(ours, theirs) ? "; the layouts (dtypes and shapes) differ" : ""),
          name_of(ours.kind)};
}

Fault collective_count_mismatch(const RankNames& names, const OperationId& id, int peer,
                                const Descriptor& theirs) {
  return {FaultKind::kUsage, peer,
          names.of(peer) + " has only now called " + text_of(id) + ", " + text_of(theirs) +
              ". This operation ended on " + names.own() +
              " long ago. All ranks must call the same number of collectives",
          name_of(theirs.kind)};
}

Fault engine_shut_down(const RankNames& names) {
  return {FaultKind::kAborted, names.own_rank(), names.own() + " has shut its engine down"};
}

}  // namespace smdist
