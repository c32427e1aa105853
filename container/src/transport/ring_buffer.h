// SPDX-License-Identifier: Apache-2.0
// Byte streams to and from a peer on this host, through shared memory.
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

// Data in a rank's arena for the ring buffers with one peer: the rank writes them, the peer reads
// them. The counters only grow. They begin at zero, because new shared memory is zero.
struct RingSide {
  alignas(64) std::atomic<uint64_t> written;  // number of bytes written for the peer
  std::atomic<uint32_t> wants_space;          // the last write() did not fit entirely
  alignas(64) std::atomic<uint64_t> read;     // number of bytes read from the peer
  std::atomic<uint64_t> acknowledged;         // number of notifications received from the peer
  std::atomic<uint64_t> signals;              // number of signals sent to the peer
  std::atomic<uint32_t> wants_signals;        // signals of the peer shall wake the rank
  alignas(
      64) std::array<uint8_t, kRingBytes> bytes;  // byte i is stored at index i modulo the length
};

// Data in a rank's arena for the ring buffers with all peers.
struct RingHead {
  alignas(
      64) std::atomic<uint32_t> sleepers;  // number of threads that sleep and need a notification
};

// Two ring buffers: from this rank to one peer, and back.
//
// Why no wake-up is lost: a thread that goes to sleep first increments `sleepers` and then checks
// all ring buffers once more. A writer first stores `written` and then checks `sleepers`. These
// accesses are sequentially consistent, so at least one of the two threads sees the change of the
// other. The writer notifies a sleeping peer by one byte over the socket, and sends no further byte
// until the peer has acknowledged it. The peer acknowledges first and reads the ring buffers
// afterwards. If a ring buffer is full, the writer waits in the same way for the reader
// (`wants_space`, `read`).
//
// Data of the peer are not trusted: its counters are checked, and its bytes are copied before use.
//
// Thread safety: has_events() may be called from any thread, all other functions by the thread that
// drives the transport.
class RingBuffer final {
 public:
  // Offsets of the RingHead and of the RingSide for this rank in the peer's arena.
  struct Offsets {
    size_t head = 0;
    size_t side = 0;
  };

  RingBuffer(RingSide& ours, Offsets offsets) : ours_(ours), offsets_(offsets) {}

  // Set the peer's arena. Call once. Throws SystemError if it is too short.
  void attach(Arena arena);
  Span arena() const { return arena_.span(); }  // empty before attach()
  // Stop reporting events, because the connection has ended. Bytes that have arrived can still be
  // read.
  void detach() { has_ended_.store(true); }

  // Write as many bytes as fit and return their number. If not all fit, free space is an event
  // until forget_space() is called. Throws PeerError if a counter of the peer is invalid.
  size_t write(const iovec* parts, size_t count);
  // Return the next received bytes, as far as they are contiguous; empty if there are none. Throws
  // PeerError if a counter of the peer is invalid.
  Span peek() const;
  // Free the space of the next `bytes` received bytes.
  void consume(size_t bytes);

  // Return whether the peer must be notified of written bytes, or of free space. If so, the caller
  // must send the notification.
  bool must_notify();
  bool must_notify_of_space();
  void undo_notify() { --notified_; }  // call if the notification could not be sent
  // Record that notifications of the peer have been received.
  void acknowledge(uint64_t calls);

  // Signal that data elsewhere in this rank's arena have changed. Returns whether the peer must be
  // notified.
  bool signal();
  // Set whether signals of the peer shall wake this rank.
  void enable_signals(bool is_wanted) { ours_.wants_signals.store(is_wanted); }
  // Mark the signals of the peer as received.
  void take_signals();

  // Return whether bytes or signals have arrived, or space is free after a write() that did not
  // fit.
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
