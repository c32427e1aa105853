// SPDX-License-Identifier: Apache-2.0
#include "engine/pending.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "reduce/reduce.h"
#include "smdist/errors.h"

namespace smdist {

Pending::Pending(Submission submission, Buffer scratch, BufferPool& pool)
    : submission_(std::move(submission)),
      pool_(pool),
      scratch_(std::move(scratch)),
      members_(index(submission_.group->size())) {
  if (submission_.may_be_shared()) expect_all();
  link_all();
}

Pending::~Pending() { pool_.give_back(std::move(scratch_)); }

void Pending::link_all() {
  open_steps_ = submission_.plan.steps.size();
  progress_.assign(open_steps_, {});
  for (uint32_t step = 0; step < progress_.size(); ++step) link(step);
}

// The sum counts as one step.
void Pending::share(SharedSum& sum) {
  sum_ = &sum;
  open_steps_ = 1;
}

// Each has to hear of all others whether they share, also of those it exchanges no messages with.
void Pending::expect_all() {
  for (int member = 0; member < submission_.group->size(); ++member) {
    members_[index(member)].is_partner = member != submission_.group->rank;
  }
  unready_partners_ = members_.size() - 1;
}

void Pending::end_sum() {
  sum_ = nullptr;
  open_steps_ = 0;
}

void Pending::replan(Buffer scratch) {
  sum_ = nullptr;
  scratch_ = std::move(scratch);
  link_all();
}

void Pending::link(uint32_t step_index) {
  const Step& step = this->step(step_index);
  progress_[step_index].waits_for = static_cast<uint32_t>(step.after.size());
  for (const uint32_t earlier : step.after) progress_[earlier].dependents.push_back(step_index);
  if (step.peer < 0) return;
  Member& member = members_[index(step.peer)];
  unready_partners_ += !member.is_partner;
  member.is_partner = true;
  if (step.kind == StepKind::kSend) {
    ++member.open_sends;
    if (!step.awaits_grant) return;
    ++progress_[step_index].waits_for;
    ungranted_[key(step.peer, step.tag)] = step_index;
  } else {
    ++member.open_receives;
    receives_[key(step.peer, step.tag)] = step_index;
    if (step.target.bytes == 0) member.signals.push_back(step_index);
  }
}

Pending::Moves Pending::begin() {
  Moves moves;
  for (uint32_t step = 0; step < progress_.size(); ++step) {
    if (this->step(step).after.empty() && !this->step(step).awaits_grant) start(step, moves);
  }
  return moves;
}

std::optional<uint32_t> Pending::take_rider(int member_rank, size_t limit) {
  Member& member = members_[index(member_rank)];
  if (member.blocked_sends.size() != 1) return std::nullopt;
  const uint32_t rider = member.blocked_sends[0];
  const size_t bytes = message_of(rider).bytes;
  if (bytes > limit) return std::nullopt;
  member.blocked_sends.clear();
  member.rider_bytes = bytes;
  return rider;
}

Pending::Moves Pending::member_ready(int member_rank) {
  Member& member = members_[index(member_rank)];
  unready_partners_ -= member.is_partner && !member.is_ready;
  member.is_ready = true;
  Moves moves;
  for (const uint32_t step : std::exchange(member.blocked_sends, {})) start(step, moves);
  for (const uint32_t step : std::exchange(member.signals, {})) complete(step, moves);
  return moves;
}

Pending::Moves Pending::sent(uint32_t step) {
  Moves moves;
  complete(step, moves);
  return moves;
}

Pending::Moves Pending::granted(int member, uint32_t tag) {
  const auto found = ungranted_.find(key(member, tag));
  if (found == ungranted_.end()) {
    throw PeerError("granted message " + std::to_string(tag) + ", which nobody asked for");
  }
  const uint32_t step = found->second;
  ungranted_.erase(found);
  Moves moves;
  if (--progress_[step].waits_for == 0) start(step, moves);
  return moves;
}

Span Pending::place(int member, uint32_t tag, uint64_t offset, uint64_t bytes) const {
  const uint32_t found = receive_of(member, tag);
  const Region& target = step(found).target;
  const size_t received = progress_[found].received;
  // In this order, so that no sum of two numbers from the wire can wrap.
  const bool is_expected =
      progress_[found].waits_for == 0 && offset == received && bytes <= target.bytes - received;
  if (!is_expected) {
    throw PeerError("sent bytes " + std::to_string(offset) + " to " +
                    std::to_string(offset + bytes) + " of a message of " +
                    std::to_string(target.bytes) + ", of which " + std::to_string(received) +
                    " were there");
  }
  return {address(target) + offset, bytes};
}

Pending::Moves Pending::arrived(int member, uint32_t tag, uint64_t bytes) {
  const uint32_t found = receive_of(member, tag);
  Progress& progress = progress_[found];
  progress.received += bytes;
  Moves moves;
  if (progress.received == step(found).target.bytes) complete(found, moves);
  return moves;
}

bool Pending::lend(uint32_t tag, uint64_t bytes, const Lease& lease) {
  const Region& target = step(receive_of(lease.member, tag)).target;
  if (target.room != Room::kScratch || bytes != target.bytes) return false;
  lent_[target.offset] = lease;
  return true;
}

bool Pending::owes_us(int member) const {
  if (sum_ != nullptr) return sum_->owes_us(index(member));
  return members_[index(member)].open_receives > 0;
}

bool Pending::needs(int member) const {
  if (sum_ != nullptr) return !is_ready(member) || sum_->needs(index(member));
  const Member& state = members_[index(member)];
  const bool is_unmet = state.is_partner && !state.is_ready;
  return is_unmet || state.open_sends > 0 || state.open_receives > 0;
}

bool Pending::keeps_waiting(int member) const {
  const bool is_summing = sum_ != nullptr && sum_->has_met_all();
  return is_summing ? (sum_->slowest() >> member & 1) != 0 : needs(member);
}

int Pending::member_of(int rank) const {
  const std::vector<int>& members = submission_.group->members;
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) {
    throw PeerError("takes part in an operation of group " + std::to_string(submission_.group->id) +
                    ", which it is not in");
  }
  return static_cast<int>(found - members.begin());
}

std::vector<int> Pending::partners() const {
  std::vector<int> partners;
  for (int member = 0; member < submission_.group->size(); ++member) {
    if (members_[index(member)].is_partner) partners.push_back(member);
  }
  return partners;
}

std::vector<int> Pending::missing() const {
  std::vector<int> unready;
  std::vector<int> waited_for;
  for (const int member : partners()) {
    if (!is_ready(member)) unready.push_back(member);
    if (keeps_waiting(member)) waited_for.push_back(member);
  }
  // Who has not even called keeps all others from contributing.
  return unready.empty() ? waited_for : unready;
}

bool Pending::is_stuck_elsewhere() const {
  const std::vector<int> members = missing();
  return !members.empty() &&
         std::all_of(members.begin(), members.end(), [this](int each) { return is_ready(each); });
}

Span Pending::message_of(uint32_t step_index) const {
  const Region& region = step(step_index).sources[0];
  return {address(region), region.bytes};
}

uint64_t Pending::key(int member, uint32_t tag) {
  return static_cast<uint64_t>(member) << 32 | tag;
}

uint8_t* Pending::address(const Region& region) const {
  switch (region.room) {
    case Room::kInput:
      return static_cast<uint8_t*>(submission_.operation.inputs[region.index].data) + region.offset;
    case Room::kOutput:
      return static_cast<uint8_t*>(submission_.operation.outputs[region.index].data) +
             region.offset;
    case Room::kScratch:
      return scratch_.data.get() + region.offset;
  }
  return nullptr;
}

uint32_t Pending::receive_of(int member, uint32_t tag) const {
  const auto found = receives_.find(key(member, tag));
  if (found == receives_.end()) {
    throw PeerError("sent message " + std::to_string(tag) + ", which nobody expects");
  }
  return found->second;
}

void Pending::start(uint32_t step_index, Moves& moves) {
  const Step& step = this->step(step_index);
  switch (step.kind) {
    case StepKind::kReceive:
      if (!step.after.empty()) moves.grants.push_back(step_index);
      return;  // else it is open from the beginning
    case StepKind::kCopy:
      copy(step);
      return complete(step_index, moves);
    case StepKind::kReduce:
      sum(step, moves);
      return complete(step_index, moves);
    case StepKind::kSend:
      Member& member = members_[index(step.peer)];
      const bool is_signal = step.sources[0].bytes == 0;
      if (is_signal) return complete(step_index, moves);  // being ready says it all
      (member.is_ready ? moves.sends : member.blocked_sends).push_back(step_index);
      return;
  }
}

void Pending::complete(uint32_t step_index, Moves& moves) {
  const Step& step = this->step(step_index);
  --open_steps_;
  if (step.kind == StepKind::kSend) --members_[index(step.peer)].open_sends;
  if (step.kind == StepKind::kReceive) --members_[index(step.peer)].open_receives;
  for (const uint32_t dependent : progress_[step_index].dependents) {
    if (--progress_[dependent].waits_for == 0) start(dependent, moves);
  }
}

void Pending::copy(const Step& step) const {
  const uint8_t* from = address(step.sources[0]);
  uint8_t* to = address(step.target);
  if (from != to) std::memcpy(to, from, step.target.bytes);
}

void Pending::sum(const Step& step, Moves& moves) {
  std::vector<const void*> sources;
  for (const Region& source : step.sources) sources.push_back(source_address(source));
  void* target = address(step.target);
  reduce_stage(step, sources, target);
  for (const Region& source : step.sources) {
    if (source.room != Room::kScratch || lent_.empty()) continue;
    const auto lent = lent_.find(source.offset);
    if (lent == lent_.end()) continue;
    moves.releases.push_back(lent->second);
    lent_.erase(lent);
  }
}

void Pending::reduce_stage(const Step& step, const std::vector<const void*>& sources,
                           void* target) const {
  const Dtype dtype = submission_.operation.dtype;
  const ReduceOp op = submission_.operation.op;
  const double scale = submission_.operation.scale;
  switch (step.stage) {
    case Stage::kWhole:
      return reduce(dtype, op, scale, sources, target, step.target.bytes / element_bytes(dtype));
    case Stage::kPartial:
      return reduce_to_partial(dtype, op, scale, sources, target,
                               step.target.bytes / partial_bytes(dtype));
    case Stage::kFinal:
      return reduce_partials(dtype, op, submission_.group->size(), sources, target,
                             step.target.bytes / element_bytes(dtype));
  }
}

const void* Pending::source_address(const Region& region) const {
  if (region.room == Room::kScratch && !lent_.empty()) {
    const auto lent = lent_.find(region.offset);
    if (lent != lent_.end()) return lent->second.data;
  }
  return address(region);
}

}  // namespace smdist
