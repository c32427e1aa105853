// SPDX-License-Identifier: Apache-2.0
// A stream of bytes to a neighbour, and one from it, in memory that both can read.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/arena.h"
#include "smdist/operation.h"

namespace smdist {

constexpr size_t kRingBytes = 64 << 10;

// What a rank keeps in its arena for one neighbour: the rank writes, the neighbour reads.
// Numbers only grow. All zero at first, as new shared memory is.
struct RingSide {
  alignas(64) std::atomic<uint64_t> written;          // bytes for the neighbour
  std::atomic<uint32_t> wants_room;                   // more would have been
  alignas(64) std::atomic<uint64_t> read;             // bytes of the neighbour's
  std::atomic<uint64_t> heard;                        // of its calls
  std::atomic<uint64_t> signals;                      // to the neighbour
  std::atomic<uint32_t> wants_signals;                // of the neighbour, while it sleeps
  alignas(64) std::array<uint8_t, kRingBytes> bytes;  // byte i lies at i modulo the length
};

// What it keeps for all of them.
struct RingHead {
  alignas(64) std::atomic<uint32_t> sleepers;  // threads that have to be called
};

// Both directions between this rank and one neighbour.
//
// Why no news is missed. Who falls asleep says so (sleepers) and then looks at all rings once
// more; who has written something first shows it (written) and then looks for sleepers, all in one
// order (seq_cst): one of the two sees the other. A sleeper is called, by a byte
// over the socket beside the ring, but once until it has heard: who hears says so (heard) and
// looks at the rings after that. A full ring is the same with the roles turned (wants_room, read).
//
// The neighbour is not trusted: its numbers are checked, its bytes copied before they are used.
//
// Thread safety: has_news() may be called from any thread, all else by whoever has the lead.
class Ring final {
 public:
  // Where a RingHead and the RingSide for this rank lie in the neighbour's arena.
  struct Place {
    size_t head = 0;
    size_t side = 0;
  };

  Ring(RingSide& ours, Place place) : ours_(ours), place_(place) {}

  // Goes on with the neighbour's arena, once. Throws SystemError if it is too short.
  void attach(Arena arena);
  Span arena() const { return arena_.span(); }  // empty before
  // For ever: what has come can still be read, but is no news.
  void detach() { has_ended_.store(true); }

  // Takes as many bytes as there is room for. If that is not all of them, room is news from
  // then on, until forget_room(). Throws PeerError.
  size_t write(const iovec* parts, size_t count);
  // What has come and lies in one piece; empty: nothing. Throws PeerError.
  Span peek() const;
  void consume(size_t bytes);

  // Whether the neighbour has to be called for what was written, or for the room there is.
  bool must_call();
  bool must_call_for_room();
  void forget_call() { --called_; }  // it could not be made
  void hear(uint64_t calls);

  // Tells the neighbour that other memory has changed. Whether it has to be called.
  bool signal();
  void expect_signals(bool is_wanted) { ours_.wants_signals.store(is_wanted); }
  void take_signals();

  // Something has come, or there is room for what had none.
  bool has_news() const;
  void forget_room() {
    if (ours_.wants_room.load() != 0) ours_.wants_room.store(0);
  }

 private:
  size_t room() const;
  void put(const iovec& part, size_t bytes);

  RingSide& ours_;
  const Place place_;
  Arena arena_;
  std::atomic<const RingSide*> theirs_{nullptr};
  std::atomic<bool> has_ended_{false};
  const RingHead* head_ = nullptr;
  uint64_t written_ = 0;
  uint64_t read_ = 0;
  uint64_t heard_ = 0;
  uint64_t called_ = 0;
  uint64_t signals_ = 0;
  std::atomic<uint64_t> signals_taken_{0};
};

}  // namespace smdist
