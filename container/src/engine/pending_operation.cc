// SPDX-License-Identifier: Apache-2.0
#include "engine/pending_operation.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "reduce/reduce.h"
#include "smdist/errors.h"

namespace smdist {

PendingOperation::PendingOperation(Submission submission, Buffer scratch, BufferPool& pool,
                                   Transport& transport)
    : submission_(std::move(submission)),
      pool_(pool),
      transport_(transport),
      scratch_(std::move(scratch)),
      members_(index(submission_.group->size())) {
  if (submission_.may_be_shared()) add_all_partners();
  link_all();
}

// Lets the transport copy what peers may need again, because the memory is given back.
void PendingOperation::detach_all() {
  const Operation& operation = submission_.operation;
  for (const std::vector<Span>* const buffers : {&operation.inputs, &operation.outputs}) {
    for (const Span& each : *buffers) transport_.detach_payloads(each);
  }
  if (scratch_.data) transport_.detach_payloads({scratch_.data.get(), scratch_.bytes});
}

PendingOperation::~PendingOperation() { pool_.give_back(std::move(scratch_)); }

void PendingOperation::link_all() {
  open_steps_ = submission_.plan.steps.size();
  progress_.assign(open_steps_, {});
  for (uint32_t step = 0; step < progress_.size(); ++step) link(step);
}

// Replaces the plan by one step, the sum in shared memory.
void PendingOperation::share(SharedSum& sum) {
  sum_ = &sum;
  open_steps_ = 1;
}

// Makes all members partners: each member has to receive from all others whether they can use
// shared memory, even from those with which it exchanges no messages.
void PendingOperation::add_all_partners() {
  for (int member = 0; member < submission_.group->size(); ++member) {
    members_[index(member)].is_partner = member != submission_.group->rank;
  }
  unready_partners_ = members_.size() - 1;
}

void PendingOperation::end_sum() {
  sum_ = nullptr;
  open_steps_ = 0;
}

void PendingOperation::replan(Buffer scratch) {
  sum_ = nullptr;
  scratch_ = std::move(scratch);
  link_all();
}

void PendingOperation::link(uint32_t step_index) {
  const Step& step = this->step(step_index);
  progress_[step_index].waits_for = static_cast<uint32_t>(step.after.size());
  for (const uint32_t earlier : step.after) progress_[earlier].dependents.push_back(step_index);
  if (step.peer < 0) return;
  Member& member = members_[index(step.peer)];
  unready_partners_ += !member.is_partner;
  member.is_partner = true;
  if (step.kind == StepKind::kSend) {
    ++member.open_sends;
    if (!step.awaits_credit) return;
    ++progress_[step_index].waits_for;
    without_credit_[key(step.peer, step.tag)] = step_index;
  } else {
    ++member.open_receives;
    receives_[key(step.peer, step.tag)] = step_index;
    if (step.target.bytes == 0) member.signals.push_back(step_index);
  }
}

PendingOperation::Actions PendingOperation::begin() {
  Actions actions;
  for (uint32_t step = 0; step < progress_.size(); ++step) {
    if (this->step(step).after.empty() && !this->step(step).awaits_credit) start(step, actions);
  }
  return actions;
}

std::optional<uint32_t> PendingOperation::take_eager(int member_rank, size_t limit) {
  Member& member = members_[index(member_rank)];
  if (member.blocked_sends.size() != 1) return std::nullopt;
  const uint32_t eager = member.blocked_sends[0];
  const size_t bytes = message_of(eager).bytes;
  if (bytes > limit) return std::nullopt;
  member.blocked_sends.clear();
  member.eager_bytes = bytes;
  return eager;
}

PendingOperation::Actions PendingOperation::member_ready(int member_rank) {
  Member& member = members_[index(member_rank)];
  unready_partners_ -= member.is_partner && !member.is_ready;
  member.is_ready = true;
  Actions actions;
  for (const uint32_t step : std::exchange(member.blocked_sends, {})) start(step, actions);
  for (const uint32_t step : std::exchange(member.signals, {})) complete(step, actions);
  return actions;
}

PendingOperation::Actions PendingOperation::sent(uint32_t step) {
  ++num_events_;
  Actions actions;
  complete(step, actions);
  return actions;
}

PendingOperation::Actions PendingOperation::credited(int member, uint32_t tag) {
  ++num_events_;
  const auto found = without_credit_.find(key(member, tag));
  if (found == without_credit_.end()) {
    throw PeerError("gave permission to send message " + std::to_string(tag) +
                    ", which does not wait for permission. Restart the job, and report this bug of "
                    "smdist");
  }
  const uint32_t step = found->second;
  without_credit_.erase(found);
  Actions actions;
  if (--progress_[step].waits_for == 0) start(step, actions);
  return actions;
}

Span PendingOperation::place(int member, uint32_t tag, uint64_t offset, uint64_t bytes) {
  const uint32_t found = receive_of(member, tag);
  const Region& target = step(found).target;
  StepProgress& progress = progress_[found];
  // Checked without adding numbers from the wire, because their sum could wrap around.
  const bool is_expected = progress.waits_for == 0 && offset == progress.reserved &&
                           bytes <= target.bytes - progress.reserved;
  if (!is_expected) {
    throw PeerError("sent bytes " + std::to_string(offset) + " to " +
                    std::to_string(offset + bytes) + " of a message of " +
                    std::to_string(target.bytes) + " bytes, but this rank expected byte " +
                    std::to_string(progress.reserved) + " next");
  }
  progress.reserved += bytes;
  return {address(target) + offset, bytes};
}

PendingOperation::Actions PendingOperation::arrived(int member, uint32_t tag, uint64_t bytes) {
  ++num_events_;
  const uint32_t found = receive_of(member, tag);
  StepProgress& progress = progress_[found];
  progress.received += bytes;
  Actions actions;
  if (progress.received == step(found).target.bytes) complete(found, actions);
  return actions;
}

bool PendingOperation::borrow(uint32_t tag, uint64_t bytes, const BorrowedBlock& block) {
  const Region& target = step(receive_of(block.member, tag)).target;
  if (target.buffer != BufferKind::kScratch || bytes != target.bytes) return false;
  borrowed_[target.offset] = block;
  return true;
}

std::vector<PendingOperation::BorrowedBlock> PendingOperation::borrowed() const {
  std::vector<BorrowedBlock> blocks;
  for (const auto& [offset, block] : borrowed_) blocks.push_back(block);
  return blocks;
}

bool PendingOperation::awaits_data_from(int member) const {
  if (sum_ != nullptr) return sum_->awaits_data_from(index(member));
  return members_[index(member)].open_receives > 0;
}

bool PendingOperation::needs(int member) const {
  if (sum_ != nullptr) return !is_ready(member) || sum_->needs(index(member));
  const Member& state = members_[index(member)];
  const bool is_unmet = state.is_partner && !state.is_ready;
  return is_unmet || state.open_sends > 0 || state.open_receives > 0;
}

int PendingOperation::member_of(int rank) const {
  const std::vector<int>& members = submission_.group->members;
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) {
    throw PeerError("sent a frame for group " + std::to_string(submission_.group->id) +
                    ", but is not a member of it");
  }
  return static_cast<int>(found - members.begin());
}

std::vector<int> PendingOperation::partners() const {
  std::vector<int> partners;
  for (int member = 0; member < submission_.group->size(); ++member) {
    if (members_[index(member)].is_partner) partners.push_back(member);
  }
  return partners;
}

std::vector<int> PendingOperation::blocking_members() const {
  std::vector<int> unready;
  std::vector<int> blocking;
  for (const int member : partners()) {
    if (!is_ready(member)) unready.push_back(member);
    if (needs(member)) blocking.push_back(member);
  }
  // Members that have not posted the operation also delay the others.
  return unready.empty() ? blocking : unready;
}

bool PendingOperation::is_blocked_by_ready_members() const {
  const std::vector<int> members = blocking_members();
  return !members.empty() &&
         std::all_of(members.begin(), members.end(), [this](int each) { return is_ready(each); });
}

Span PendingOperation::message_of(uint32_t step_index) const {
  const Region& region = step(step_index).sources[0];
  return {address(region), region.bytes};
}

uint64_t PendingOperation::key(int member, uint32_t tag) {
  return static_cast<uint64_t>(member) << 32 | tag;
}

uint8_t* PendingOperation::address(const Region& region) const {
  switch (region.buffer) {
    case BufferKind::kInput:
      return static_cast<uint8_t*>(submission_.operation.inputs[region.index].data) + region.offset;
    case BufferKind::kOutput:
      return static_cast<uint8_t*>(submission_.operation.outputs[region.index].data) +
             region.offset;
    case BufferKind::kScratch:
      return scratch_.data.get() + region.offset;
  }
  return nullptr;
}

uint32_t PendingOperation::receive_of(int member, uint32_t tag) const {
  const auto found = receives_.find(key(member, tag));
  if (found == receives_.end()) {
    throw PeerError("sent message " + std::to_string(tag) + ", which this rank does not expect");
  }
  return found->second;
}

void PendingOperation::start(uint32_t step_index, Actions& actions) {
  const Step& step = this->step(step_index);
  switch (step.kind) {
    case StepKind::kReceive:
      if (!step.after.empty()) actions.credits.push_back(step_index);
      return;  // a receive without dependencies is open from the beginning
    case StepKind::kCopy:
      copy(step);
      return complete(step_index, actions);
    case StepKind::kReduce:
      sum(step, actions);
      return complete(step_index, actions);
    case StepKind::kSend:
      Member& member = members_[index(step.peer)];
      const bool is_signal = step.sources[0].bytes == 0;
      if (is_signal) return complete(step_index, actions);  // the RTR frame is the signal
      (member.is_ready ? actions.sends : member.blocked_sends).push_back(step_index);
      return;
  }
}

void PendingOperation::complete(uint32_t step_index, Actions& actions) {
  const Step& step = this->step(step_index);
  --open_steps_;
  if (step.kind == StepKind::kSend) --members_[index(step.peer)].open_sends;
  if (step.kind == StepKind::kReceive) --members_[index(step.peer)].open_receives;
  for (const uint32_t dependent : progress_[step_index].dependents) {
    if (--progress_[dependent].waits_for == 0) start(dependent, actions);
  }
}

void PendingOperation::copy(const Step& step) const {
  const uint8_t* from = address(step.sources[0]);
  uint8_t* to = address(step.target);
  if (from == to) return;
  transport_.detach_payloads({to, step.target.bytes});
  std::memcpy(to, from, step.target.bytes);
}

void PendingOperation::sum(const Step& step, Actions& actions) {
  std::vector<const void*> sources;
  for (const Region& source : step.sources) sources.push_back(source_address(source));
  void* target = address(step.target);
  transport_.detach_payloads({target, step.target.bytes});
  reduce_stage(step, sources, target);
  for (const Region& source : step.sources) {
    if (source.buffer != BufferKind::kScratch || borrowed_.empty()) continue;
    const auto block = borrowed_.find(source.offset);
    if (block == borrowed_.end()) continue;
    actions.releases.push_back(block->second);
    borrowed_.erase(block);
  }
}

void PendingOperation::reduce_stage(const Step& step, const std::vector<const void*>& sources,
                                    void* target) const {
  const Dtype dtype = submission_.operation.dtype;
  const ReduceOp op = submission_.operation.op;
  const double scale = submission_.operation.scale;
  switch (step.stage) {
    case ReduceStage::kWhole:
      return reduce(dtype, op, scale, sources, target, step.target.bytes / element_bytes(dtype));
    case ReduceStage::kPartial:
      return reduce_to_partial(dtype, op, scale, sources, target,
                               step.target.bytes / partial_bytes(dtype));
    case ReduceStage::kFinal:
      return reduce_partials(dtype, op, submission_.group->size(), sources, target,
                             step.target.bytes / element_bytes(dtype));
  }
}

const uint8_t* PendingOperation::source_address(const Region& region) const {
  if (region.buffer == BufferKind::kScratch && !borrowed_.empty()) {
    const auto block = borrowed_.find(region.offset);
    if (block != borrowed_.end()) return block->second.data;
  }
  return address(region);
}

}  // namespace smdist
