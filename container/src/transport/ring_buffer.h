// SPDX-License-Identifier: Apache-2.0
// A pair of byte streams to and from a peer on this host, through shared memory.
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

// One rank's part of the ring buffers with one peer, in the rank's arena: the rank writes it, the
// peer reads it. The counters only grow. They begin at zero, as new shared memory does.
struct RingSide {
  alignas(64) std::atomic<uint64_t> written;  // number of bytes written for the peer
  std::atomic<uint32_t> wants_space;          // the last write was cut short
  alignas(64) std::atomic<uint64_t> read;     // number of bytes read from the peer
  std::atomic<uint64_t> acknowledged;         // number of notifications received from the peer
  std::atomic<uint64_t> signals;              // number of signals sent to the peer
  std::atomic<uint32_t> wants_signals;        // the rank wants signals of the peer to wake it
  alignas(
      64) std::array<uint8_t, kRingBytes> bytes;  // byte i is stored at index i modulo the length
};

// One rank's part of the ring buffers with all peers.
struct RingHead {
  alignas(
      64) std::atomic<uint32_t> sleepers;  // number of threads that sleep and need a notification
};

// Both directions between this rank and one peer.
//
// No wake-up is lost. A thread that goes to sleep first increments `sleepers` and then checks all
// ring buffers once more. A writer first publishes `written` and then checks `sleepers`. All
// these accesses are sequentially consistent, so at least one of the two sees the other. The
// writer notifies a sleeper by one byte over the socket, and not again until the peer has
// acknowledged it; the peer acknowledges first and reads the ring buffers afterwards. A full ring
// buffer works the same way with the roles exchanged (`wants_space`, `read`).
//
// The peer is not trusted: its counters are checked, and its bytes are copied before use.
//
// Thread safety: has_events() may be called from any thread, all other functions by the thread
// that drives the transport.
class RingBuffer final {
 public:
  // Offsets of the RingHead and of the RingSide for this rank in the peer's arena.
  struct Offsets {
    size_t head = 0;
    size_t side = 0;
  };

  RingBuffer(RingSide& ours, Offsets offsets) : ours_(ours), offsets_(offsets) {}

  // Attaches the peer's arena. Call once. Throws SystemError if it is too short.
  void attach(Arena arena);
  Span arena() const { return arena_.span(); }  // empty before attach()
  // Ends events for good; bytes that have arrived can still be read.
  void detach() { has_ended_.store(true); }

  // Writes as many bytes as fit and returns their number. If that is not all of them, free space
  // counts as an event until forget_space(). Throws PeerError.
  size_t write(const iovec* parts, size_t count);
  // Returns the next received bytes that are contiguous; empty if there are none. Throws
  // PeerError.
  Span peek() const;
  void consume(size_t bytes);

  // Returns whether the peer must be notified of written bytes, or of free space.
  bool must_notify();
  bool must_notify_of_space();
  void undo_notify() { --notified_; }  // the notification could not be sent
  void acknowledge(uint64_t calls);

  // Records that other memory of this rank has changed. Returns whether the peer must be
  // notified.
  bool signal();
  void enable_signals(bool is_wanted) { ours_.wants_signals.store(is_wanted); }
  void take_signals();

  // Returns whether bytes or signals have arrived, or space is free after a short write.
  bool has_events() const;
  void forget_space() {
    if (ours_.wants_space.load() != 0) ours_.wants_space.store(0);
  }

 private:
  size_t free_bytes() const;
  void put(const iovec& part, size_t bytes);

  RingSide& ours_;
  const Offsets offsets_;
  Arena arena_;
  std::atomic<const RingSide*> theirs_{nullptr};
  std::atomic<bool> has_ended_{false};
  const RingHead* head_ = nullptr;
  uint64_t written_ = 0;
  uint64_t read_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t notified_ = 0;
  uint64_t signals_ = 0;
  std::atomic<uint64_t> signals_taken_{0};
};

}  // namespace smdist
