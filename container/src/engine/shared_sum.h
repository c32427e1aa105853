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

// Buffers and shards of the all-reduce. Shards and the order of additions are those of a plan
// (collectives.h), so that the result has the same bits.
struct SumTask {
  Dtype dtype;
  ReduceOp op;
  double scale;
  const uint8_t* input;
  uint8_t* output;
  std::vector<size_t> boundaries;  // of the members' shards
  size_t chunk_bytes;
};

// One rank's part. The ranks exchange chunks through slots of their reduction buffers, and counters
// in shared memory say which chunks are there; no frames are sent. Chunk by chunk, a rank
//   gives each other rank its share of that rank's shard,
//   adds the shares of its own shard, and puts the sum in a slot for the others, and
//   takes the sums of the other shards.
// A slot is used again when the counters of its readers allow it.
//
// Thread safety: none; the counters synchronize with other processes.
class SharedSum final {
 public:
  using MemberSet = uint64_t;  // a set: bit i for member i

  // count: where the counters of the reduction buffer are now.
  SharedSum(SumTask task, size_t member, const ReductionBuffer& own, uint64_t count);

  // A member takes part, at its buffer, whose counters are at `count`. Nothing of other members
  // is read before all have joined; afterwards nobody can cancel().
  void join(size_t member, const ReductionBuffer& theirs, uint64_t count);

  bool all_joined() const { return num_joined_ == progress_.size() - 1; }

  // Move one chunk, and return the members that may wait for it. Empty: nothing can be done now.
  MemberSet advance();
  // The members whose next chunk is needed, after advance() returned an empty set. Empty before
  // all have joined: frames announce that.
  MemberSet awaited() const;
  bool is_done() const;

  // Return whether this rank still depends on the member.
  bool needs(size_t member) const;
  // Return whether this rank still waits for data of the member.
  bool awaits_data_from(size_t member) const;
  // The members that are furthest behind, among those needed: the others may wait for them, too.
  MemberSet slowest() const;

  // Return whether nobody reads our reduction buffer any more; its counters are at end() then.
  // Requires: is_done().
  bool is_drained() const;
  uint64_t end() const { return count_ + most_chunks_; }
  // End the sum before all have joined.
  void cancel();

 private:
  struct MemberProgress {
    std::optional<ReductionBuffer> buffer;
    uint64_t count = 0;   // where its counters were at the beginning
    uint64_t chunks = 0;  // of its shard
    uint64_t given = 0;   // chunks that we gave it
    uint64_t taken = 0;   // chunks that we took from it
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
  const uint64_t count_;  // where our counters were at the beginning
  uint64_t most_chunks_ = 0;
  size_t num_joined_ = 0;
  uint64_t added_ = 0;  // chunks of our shard
  size_t next_action_ = 0;
  std::vector<MemberProgress> progress_;  // by member
  std::vector<const void*> sources_;
};

}  // namespace smdist
