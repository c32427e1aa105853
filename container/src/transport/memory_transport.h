// SPDX-License-Identifier: Apache-2.0
// Transport for tests, between ranks that are threads of one process, with injected faults.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/mutex.h"
#include "smdist/transport.h"

namespace smdist {

// Stores all messages in flight between the ranks of one process.
//
// Thread safety: all methods may be called from any thread.
class MemoryHub final : public std::enable_shared_from_this<MemoryHub> {
 public:
  explicit MemoryHub(int size);

  // Return the transport of one rank. It shares ownership of the hub.
  std::unique_ptr<Transport> transport(int rank);

  // Give every rank an arena of `bytes` bytes that all others on its host can read. hosts: number
  // of the host of each rank; empty: all are on one host. Call before transport().
  void share_memory(size_t bytes, const std::vector<int>& hosts);

  // Delay every message by a random time up to `longest`. Messages from one sender to one receiver
  // stay in order; others may overtake each other.
  void delay(std::chrono::microseconds longest, uint32_t seed) SMDIST_EXCLUDES(mutex_);

  // Simulate the death of a rank: all its connections are lost.
  void kill(int rank) SMDIST_EXCLUDES(mutex_);

  // Break the connection between two ranks; both report the loss.
  void cut(int a, int b) SMDIST_EXCLUDES(mutex_);

 private:
  friend class MemoryTransport;
  using Clock = std::chrono::steady_clock;

  struct Packet {
    HeaderBytes header;
    std::vector<uint8_t> payload;
    Clock::time_point due;
  };
  struct Channel {  // one direction
    std::deque<Packet> packets;
    bool is_cut = false;
  };
  struct Rank {
    std::condition_variable_any changed;
    bool is_woken = false;
    bool is_signalled = false;
    std::vector<bool> known_lost;  // by peer: the loss has been reported to this rank
  };
  enum class Event : uint8_t { kNothing, kPacket, kLoss };

  Span arena(int rank);
  bool share(int a, int b) const;
  void post(int from, int to, Message message) SMDIST_EXCLUDES(mutex_);
  void wake(int rank) SMDIST_EXCLUDES(mutex_);
  void clear_wake(int rank) SMDIST_EXCLUDES(mutex_);
  void signal(int rank) SMDIST_EXCLUDES(mutex_);
  void take_signals(int rank) SMDIST_EXCLUDES(mutex_);
  void leave(int rank) SMDIST_EXCLUDES(mutex_);
  // Remove and return the next event for the rank, without waiting.
  Event next(int rank, int* from, Packet* packet) SMDIST_EXCLUDES(mutex_);
  // Block until an event for the rank, wake(), or the deadline.
  void await(int rank, Clock::time_point until) SMDIST_EXCLUDES(mutex_);
  // Return the next event and set its sender. If there is none, set the time of the next one.
  Event look(int rank, int* from, Clock::time_point* wake_up) SMDIST_REQUIRES(mutex_);
  void mark_lost(int rank, int peer) SMDIST_EXCLUDES(mutex_);
  void separate(int a, int b) SMDIST_REQUIRES(mutex_);
  Channel& channel(int from, int to) SMDIST_REQUIRES(mutex_);

  const int size_;
  // Constant once transports exist.
  std::vector<std::vector<uint8_t>> arenas_;
  std::vector<int> hosts_;

  Mutex mutex_;
  std::deque<Channel> channels_ SMDIST_GUARDED_BY(mutex_);
  std::deque<Rank> ranks_ SMDIST_GUARDED_BY(mutex_);
  std::chrono::microseconds longest_delay_ SMDIST_GUARDED_BY(mutex_){0};
  std::minstd_rand random_ SMDIST_GUARDED_BY(mutex_);
};

}  // namespace smdist
