// SPDX-License-Identifier: Apache-2.0
// An all-reduce among ranks that share memory, of which counters tell and no frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/exchange.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// What is added: the same shards and the same order of additions as in a plan (collectives.h).
struct SumTask {
  Dtype dtype;
  ReduceOp op;
  double scale;
  const uint8_t* input;
  uint8_t* output;
  std::vector<size_t> boundaries;  // of the members' shards
  size_t piece_bytes;
};

// One rank's part. Piece by piece it gives the others their shares, in slots of its exchange;
// adds the shares of its own shard, and lays the sum in a slot, too; and takes the sums of others.
// A slot is used again when the counters of those who read it say so.
//
// Thread safety: none. Counters are read and written as other ranks do.
class SharedSum final {
 public:
  using Members = uint64_t;  // a set: bit i for member i

  // The counters of the exchange stand at `count`.
  SharedSum(SumTask task, size_t member, const Exchange& own, uint64_t count);

  // The member takes part, at its exchange, whose counters stand at `count`. Once all have met,
  // none can cancel(); before, nothing of theirs is looked at.
  void meet(size_t member, const Exchange& theirs, uint64_t count);

  bool has_met_all() const { return num_met_ == sides_.size() - 1; }

  // Moves one piece, and returns to whom that may be news. Nobody: nothing can be done now.
  Members advance();
  // Without whose next piece nothing can be done, after advance() said so. Nobody's before all
  // have met: frames tell of that.
  Members awaited() const;
  bool is_done() const;

  // The member has not done all of its part that ours depends on.
  bool needs(size_t member) const;
  bool owes_us(size_t member) const;
  // Of those, who is furthest behind: the others may wait for them, too.
  Members slowest() const;

  // Nobody reads our exchange any more, whose counters stand at end(). Requires: is_done().
  bool is_left() const;
  uint64_t end() const { return count_ + most_pieces_; }
  // Ends it before all have met.
  void cancel();

 private:
  struct Side {
    std::optional<Exchange> exchange;
    uint64_t count = 0;
    uint64_t pieces = 0;  // of its shard
    uint64_t given = 0;   // by us
    uint64_t taken = 0;   // by us
  };

  size_t size() const { return sides_.size(); }
  size_t other(size_t step) const { return (member_ + step) % size(); }
  Members all_others() const;
  Members act(size_t action);
  bool give(size_t owner);
  bool add();
  bool take(size_t owner);
  bool has_room_for(size_t owner, uint64_t piece) const;
  bool lacks(size_t member) const;
  void add_slice(uint64_t piece, size_t at, size_t bytes);

  uint64_t given_by(size_t member) const;
  uint64_t taken_by(size_t member) const;
  uint64_t summed_by(size_t member) const;
  void tell(Exchange::Counter& counter, uint64_t pieces, uint64_t of);

  size_t offset_of(size_t owner, uint64_t piece) const;
  size_t bytes_of(size_t owner, uint64_t piece) const;

  const SumTask task_;
  const size_t member_;
  const Exchange own_;
  const uint64_t count_;
  uint64_t most_pieces_ = 0;
  size_t num_met_ = 0;
  uint64_t added_ = 0;
  size_t turn_ = 0;
  std::vector<Side> sides_;  // by member
  std::vector<const void*> sources_;
};

}  // namespace smdist
