// SPDX-License-Identifier: Apache-2.0
// An all-reduce in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/reduction_buffer.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Arguments of the all-reduce. The shards and the order of additions are those of a plan
// (collectives.h), so that the result has the same bits.
struct SumTask {
  Dtype dtype;
  ReduceOp op;
  double scale;
  const uint8_t* input;
  uint8_t* output;
  std::vector<size_t> boundaries;  // boundaries of the members' shards
  size_t chunk_bytes;
  // Input and output are the same memory, which the other members can read.
  bool is_readable = false;
};

// One rank's side of an all-reduce in shared memory. The ranks exchange chunks through slots of
// their reduction buffers; counters in shared memory count the chunks; no frames are sent. For each
// chunk, a rank
//   gives: copies its share of every other rank's shard to a slot,
//   adds: sums the shares of its own shard, and copies the sum to a slot, and
//   takes: copies the sums of the other shards to its output.
// A slot is used again after the counters of its readers show that they have read it.
//
// A rank whose data are readable by the others copies nothing to slots: the others read its shares
// and sums where they are. A share is overwritten by the sum of its shard, after the shard's owner
// has read it. The rank is done when the others have read its sums.
//
// Thread safety: none; the counters synchronize with other processes.
class SharedSum final {
 public:
  using MemberSet = uint64_t;  // a set of members: bit i is member i

  // member: this rank's number in the group. own: this rank's reduction buffer. count: current
  // value of its counters.
  SharedSum(SumTask task, size_t member, const ReductionBuffer& own, uint64_t count);

  // Record that another member takes part, with its reduction buffer, whose counters have the value
  // `count`. data: the member's readable data; null: they come to its slots. Data of others are
  // read only after all members have joined.
  void join(size_t member, const ReductionBuffer& theirs, uint64_t count,
            const uint8_t* data = nullptr);

  // Return the number of bytes of the data.
  size_t bytes() const { return task_.boundaries.back(); }
  // Return the data that other members can read; null if they are copied to slots.
  const uint8_t* readable_data() const { return task_.is_readable ? task_.input : nullptr; }

  // Return whether all other members have joined.
  bool all_joined() const { return num_joined_ == progress_.size() - 1; }

  // Process one chunk (give, add or take it), and return the members that may wait for that. Empty:
  // no chunk can be processed now.
  MemberSet advance();
  // Return the members whose next chunk is needed; call after advance() has returned an empty set.
  // Empty before all have joined, which frames announce.
  MemberSet awaited() const;
  // Return whether this rank has processed all chunks.
  bool is_done() const;

  // Return whether this rank still depends on the member.
  bool needs(size_t member) const;
  // Return whether this rank still waits for data of the member.
  bool awaits_data_from(size_t member) const;

  // Return whether no member reads this rank's reduction buffer any more; then its counters have
  // the value end(). Requires: is_done().
  bool is_drained() const;
  uint64_t end() const { return count_ + most_chunks_; }
  // Cancel the sum. Other ranks may still read chunks, and even such that were never written, if
  // all members have joined; so then the operation must have failed on all ranks.
  void cancel();

 private:
  struct MemberProgress {
    std::optional<ReductionBuffer> buffer;
    const uint8_t* data = nullptr;  // null: in slots of the buffer
    uint64_t count = 0;             // initial value of its counters
    uint64_t chunks = 0;            // number of chunks of its shard
    uint64_t given = 0;             // number of chunks that this rank gave it
    uint64_t taken = 0;             // number of chunks that this rank took from it
  };

  size_t size() const { return progress_.size(); }
  size_t other(size_t step) const { return (member_ + step) % size(); }
  MemberSet all_others() const;
  MemberSet act(size_t action);
  bool give(size_t owner);
  bool add();
  bool take(size_t owner);
  bool has_free_slot_for(size_t owner, uint64_t chunk) const;
  bool must_wait_for(size_t member) const;
  bool must_be_read_by(size_t member) const;
  const uint8_t* chunk_at(size_t source, size_t owner, uint64_t chunk) const;
  void add_slice(uint64_t chunk, size_t at, size_t bytes);

  uint64_t given_by(size_t member) const;
  uint64_t taken_by(size_t member) const;
  uint64_t summed_by(size_t member) const;
  void publish(ReductionBuffer::Counter& counter, uint64_t chunks, uint64_t of);

  size_t offset_of(size_t owner, uint64_t chunk) const;
  size_t bytes_of(size_t owner, uint64_t chunk) const;

  const SumTask task_;
  const size_t member_;
  const ReductionBuffer own_;
  const uint64_t count_;  // initial value of this rank's counters
  uint64_t most_chunks_ = 0;
  size_t num_joined_ = 0;
  uint64_t added_ = 0;  // number of summed chunks of this rank's shard
  size_t next_action_ = 0;
  std::vector<MemberProgress> progress_;  // by member
  std::vector<const void*> sources_;
};

}  // namespace smdist
