// SPDX-License-Identifier: Apache-2.0
// This rank's exchanges, and the sums at them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/shared_sum.h"
#include "memory/arena_layout.h"
#include "messaging/meeting.h"

namespace smdist {

// Thread safety: none.
class Exchanges final {
 public:
  // An arena that is too short for the layout has no exchanges.
  Exchanges(ArenaLayout layout, Span own_arena);

  Span blocks_of(const Span& arena) const { return layout_.blocks(arena); }
  // The longest piece that a slot takes.
  size_t slot_bytes() const { return layout_.shape.slot_bytes; }
  // One that nobody uses; null: there is none.
  SharedSum* begin(SumTask task, size_t member);
  // What the others are told of a sum.
  Meeting meeting_of(const SharedSum& sum) const;
  // Another rank's. Throws PeerError if it has no such exchange.
  Exchange at(const Span& arena, const Meeting& meeting) const;
  // Nobody has done anything at it, or will.
  void cancel(SharedSum& sum);
  // As the engine fails: its memory is not touched again.
  void clear();

 private:
  struct Place {
    uint64_t count = 0;
    std::unique_ptr<SharedSum> sum;  // the last one
  };

  static bool is_free(const Place& place);
  bool holds_all(const Span& arena) const { return arena.bytes >= layout_.bytes; }

  const ArenaLayout layout_;
  const Span arena_;
  std::vector<Place> places_;
};

}  // namespace smdist
