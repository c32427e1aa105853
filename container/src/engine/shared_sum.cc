// SPDX-License-Identifier: Apache-2.0
#include "engine/shared_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reduce/reduce.h"

namespace smdist {
namespace {

constexpr size_t kSliceBytes =
    16 << 10;  // small enough to stay in the level-1 cache between sum and copy

SharedSum::MemberSet only(size_t member) { return SharedSum::MemberSet{1} << member; }

}  // namespace

SharedSum::SharedSum(SumTask task, size_t member, const ReductionBuffer& own, uint64_t count)
    : task_(std::move(task)),
      member_(member),
      own_(own),
      count_(count),
      progress_(task_.boundaries.size() - 1),
      sources_(progress_.size()) {
  for (size_t i = 0; i < size(); ++i) {
    const size_t bytes = task_.boundaries[i + 1] - task_.boundaries[i];
    progress_[i].chunks = (bytes + task_.chunk_bytes - 1) / task_.chunk_bytes;
    most_chunks_ = std::max(most_chunks_, progress_[i].chunks);
  }
  for (size_t i = 0; i < size(); ++i) {
    if (task_.is_readable) progress_[i].given = progress_[i].chunks;
    publish(own_.given(i), progress_[i].given, progress_[i].chunks);
    publish(own_.taken(i), 0, progress_[i].chunks);
  }
  publish(own_.summed(), 0, progress_[member_].chunks);
}

void SharedSum::join(size_t member, const ReductionBuffer& theirs, uint64_t count,
                     const uint8_t* data) {
  progress_[member].buffer = theirs;
  progress_[member].count = count;
  progress_[member].data = data;
  ++num_joined_;
}

// Sets a counter to `chunks` processed chunks of `of`. With its last chunk, a counter gets the
// final value that is common to all counters of the buffer, so that they are equal when the next
// sum begins.
void SharedSum::publish(ReductionBuffer::Counter& counter, uint64_t chunks, uint64_t of) {
  counter.store(count_ + (chunks == of ? most_chunks_ : chunks), std::memory_order_release);
}

void SharedSum::cancel() {
  for (size_t i = 0; i < size(); ++i) {
    publish(own_.given(i), 0, 0);
    publish(own_.taken(i), 0, 0);
  }
  publish(own_.summed(), 0, 0);
}

uint64_t SharedSum::given_by(size_t member) const {
  const MemberProgress& side = progress_[member];
  return side.buffer->given(member_).load(std::memory_order_acquire) - side.count;
}

uint64_t SharedSum::taken_by(size_t member) const {
  const MemberProgress& side = progress_[member];
  return side.buffer->taken(member_).load(std::memory_order_acquire) - side.count;
}

uint64_t SharedSum::summed_by(size_t member) const {
  const MemberProgress& side = progress_[member];
  return side.buffer->summed().load(std::memory_order_acquire) - side.count;
}

// Tries the gives, the add and the takes in rotation, each beginning with the next member. So a
// chunk is read while it is in the cache, and the ranks do not all begin with the same member.
SharedSum::MemberSet SharedSum::advance() {
  const size_t actions = 2 * size() - 1;
  for (size_t tried = 0; tried < actions; ++tried) {
    const MemberSet signalled = act(next_action_);
    next_action_ = (next_action_ + 1) % actions;
    if (signalled != 0) return signalled;
  }
  return 0;
}

SharedSum::MemberSet SharedSum::act(size_t action) {
  const size_t others = size() - 1;
  if (action == others) return add() ? all_others() : 0;
  const bool gives = action < others;
  const size_t owner = other(1 + (gives ? action : action - others - 1));
  return (gives ? give(owner) : take(owner)) ? only(owner) : 0;
}

SharedSum::MemberSet SharedSum::all_others() const { return (only(size()) - 1) & ~only(member_); }

bool SharedSum::has_free_slot_for(size_t owner, uint64_t chunk) const {
  if (chunk < own_.window()) return true;
  return all_joined() && summed_by(owner) + own_.window() > chunk;
}

bool SharedSum::give(size_t owner) {
  MemberProgress& side = progress_[owner];
  if (side.given == side.chunks || !has_free_slot_for(owner, side.given)) return false;
  std::memcpy(own_.slot(owner, side.given), task_.input + offset_of(owner, side.given),
              bytes_of(owner, side.given));
  ++side.given;
  publish(own_.given(owner), side.given, side.chunks);
  return true;
}

// Returns whether the next add() has to wait for the member.
bool SharedSum::must_wait_for(size_t member) const {
  if (!all_joined() || given_by(member) <= added_) return true;
  return !task_.is_readable && added_ >= own_.window() &&
         taken_by(member) + own_.window() <= added_;
}

// Returns whether this rank's memory is kept until the member has read this rank's sums there.
bool SharedSum::must_be_read_by(size_t member) const {
  if (!task_.is_readable) return false;
  return !all_joined() || taken_by(member) < progress_[member_].chunks;
}

// Returns where another member has its share, or its sum, of a chunk of the owner's shard.
const uint8_t* SharedSum::chunk_at(size_t source, size_t owner, uint64_t chunk) const {
  const MemberProgress& side = progress_[source];
  if (side.data != nullptr) return side.data + offset_of(owner, chunk);
  return side.buffer->slot(owner, chunk);
}

bool SharedSum::add() {
  const uint64_t chunks = progress_[member_].chunks;
  if (added_ == chunks) return false;
  for (size_t step = 1; step < size(); ++step) {
    if (must_wait_for(other(step))) return false;
  }
  const size_t bytes = bytes_of(member_, added_);
  for (size_t at = 0; at < bytes; at += kSliceBytes) {
    add_slice(added_, at, std::min(kSliceBytes, bytes - at));
  }
  ++added_;
  publish(own_.summed(), added_, chunks);
  return true;
}

void SharedSum::add_slice(uint64_t chunk, size_t at, size_t bytes) {
  const size_t offset = offset_of(member_, chunk) + at;
  for (size_t i = 0; i < size(); ++i) {
    sources_[i] = i == member_ ? task_.input + offset : chunk_at(i, member_, chunk) + at;
  }
  uint8_t* sum = task_.output + offset;
  reduce(task_.dtype, task_.op, task_.scale, sources_, sum, bytes / element_bytes(task_.dtype));
  if (!task_.is_readable) std::memcpy(own_.slot(member_, chunk) + at, sum, bytes);
}

bool SharedSum::take(size_t owner) {
  MemberProgress& side = progress_[owner];
  if (side.taken == side.chunks || !all_joined() || summed_by(owner) <= side.taken) return false;
  std::memcpy(task_.output + offset_of(owner, side.taken), chunk_at(owner, owner, side.taken),
              bytes_of(owner, side.taken));
  ++side.taken;
  publish(own_.taken(owner), side.taken, side.chunks);
  return true;
}

// Returns only the first of the members for which the next add() waits: the others may be ready
// before it. Asks no counter whether others have read this rank's sums: between a look at it and
// the sleep, its member would signal to a rank that seems to await nothing.
SharedSum::MemberSet SharedSum::awaited() const {
  if (!all_joined()) return 0;
  MemberSet members = 0;
  bool is_add_covered = added_ == progress_[member_].chunks;
  for (size_t step = 1; step < size(); ++step) {
    const size_t member = other(step);
    const MemberProgress& side = progress_[member];
    const bool is_first = !is_add_covered && must_wait_for(member);
    is_add_covered = is_add_covered || is_first;
    const bool is_reader = task_.is_readable && progress_[member_].chunks > 0;
    if (is_first || side.taken < side.chunks || is_reader) members |= only(member);
  }
  // The chunk for which add() waited has arrived meanwhile; the signal of its member will follow.
  return is_add_covered ? members : all_others();
}

bool SharedSum::is_done() const {
  return added_ == progress_[member_].chunks &&
         std::all_of(progress_.begin(), progress_.end(), [this](const MemberProgress& side) {
           const auto member = static_cast<size_t>(&side - progress_.data());
           if (member == member_) return true;
           return side.given == side.chunks && side.taken == side.chunks &&
                  !must_be_read_by(member);
         });
}

bool SharedSum::awaits_data_from(size_t member) const {
  const MemberProgress& side = progress_[member];
  if (!all_joined()) return true;
  return given_by(member) < progress_[member_].chunks || summed_by(member) < side.chunks;
}

bool SharedSum::needs(size_t member) const {
  return awaits_data_from(member) || must_be_read_by(member) ||
         taken_by(member) + own_.window() < progress_[member_].chunks;
}

bool SharedSum::is_drained() const {
  for (size_t step = 1; step < size(); ++step) {
    const size_t member = other(step);
    if (awaits_data_from(member) || taken_by(member) < progress_[member_].chunks) return false;
  }
  return true;
}

size_t SharedSum::offset_of(size_t owner, uint64_t chunk) const {
  return task_.boundaries[owner] + chunk * task_.chunk_bytes;
}

size_t SharedSum::bytes_of(size_t owner, uint64_t chunk) const {
  return std::min(task_.chunk_bytes, task_.boundaries[owner + 1] - offset_of(owner, chunk));
}

}  // namespace smdist
