// SPDX-License-Identifier: Apache-2.0
// Functions that make the faults which the engine can detect.
//
// Each function sets the kind, the culprit and the operation, and writes the sentence for users.
#pragma once

#include <cstddef>
#include <string>

#include "engine/rank_names.h"
#include "engine/submission.h"
#include "messaging/descriptor.h"
#include "messaging/fault.h"
#include "messaging/late_report.h"
#include "messaging/operation_id.h"

namespace smdist {

// Return the name of an operation for the beginning of a sentence, such as "operation 5 of group 0,
// all_reduce(sum, float32, 1024)".
std::string title_of(const Submission& submission);

// Return the fault of a rank that could not allocate the scratch memory of an operation.
Fault out_of_memory(const RankNames& names, const Submission& submission, size_t bytes);

// Return the fault of a peer that broke the protocol. predicate: the rest of a sentence that begins
// with the peer's name.
Fault protocol_error(const RankNames& names, int peer, const std::string& predicate);

// Return the fault of an operation that needs a lost peer. kind: kLeft or kLost. reason: the rest
// of a sentence that begins with the peer's name. has_sent_all: this rank has received all data of
// the peer.
Fault peer_lost(const RankNames& names, const Submission& submission, FaultKind kind, int peer,
                const std::string& reason, bool has_sent_all);

// Return the fault of an operation that needs a peer to which this rank could never connect.
// reason: the rest of a sentence that begins with the peer's name.
Fault never_connected(const RankNames& names, const Submission& submission, int peer,
                      const std::string& reason);

// Return the fault of a receive without a matching send, whose sender may be a lost peer. kind:
// kLeft or kLost.
Fault sender_lost(const RankNames& names, const Submission& receive, FaultKind kind, int peer,
                  const std::string& reason);

// Return the fault of an operation whose timeout has expired. late: the ranks for which the
// operation waits, which the fault's details contain, too.
Fault operation_timed_out(const RankNames& names, const Submission& submission,
                          const LateRanks& late);

// Return the fault of a receive whose timeout has expired without a matching send.
Fault receive_timed_out(const RankNames& names, const Submission& receive);

// Return the fault of two ranks that called different operations under the same number.
Fault descriptor_mismatch(const RankNames& names, const OperationId& id, const Descriptor& ours,
                          int peer, const Descriptor& theirs);

// Return the fault of a peer that called a collective under a number that ended here long ago.
Fault collective_count_mismatch(const RankNames& names, const OperationId& id, int peer,
                                const Descriptor& theirs);

// Return the fault of operations that were pending when this rank called shutdown().
Fault engine_shut_down(const RankNames& names);

}  // namespace smdist
