// SPDX-License-Identifier: Apache-2.0
// Messages between ranks that are threads of one process, with faults to order.
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

// Where the ranks of one process meet.
//
// Thread safety: all methods may be called from any thread.
class MemoryHub final : public std::enable_shared_from_this<MemoryHub> {
 public:
  explicit MemoryHub(int size);

  // The transport of one rank. Keeps the hub alive.
  std::unique_ptr<Transport> transport(int rank);

  // Gives every rank an arena that all others on its host read; hosts: by rank, empty if there
  // is one. Call before transport().
  void share_memory(size_t bytes, const std::vector<int>& hosts);

  // Every message takes a random time up to `longest`; messages of one sender to
  // one receiver stay in order, others overtake each other.
  void delay(std::chrono::microseconds longest, uint32_t seed) SMDIST_EXCLUDES(mutex_);

  // The rank dies: nothing more leaves it, and the others notice.
  void kill(int rank) SMDIST_EXCLUDES(mutex_);

  // The connection between two ranks breaks, and both notice.
  void cut(int a, int b) SMDIST_EXCLUDES(mutex_);

 private:
  friend class MemoryTransport;
  using Clock = std::chrono::steady_clock;

  struct Parcel {
    HeaderBytes header;
    std::vector<uint8_t> payload;
    Clock::time_point due;
  };
  struct Pair {  // one direction
    std::deque<Parcel> parcels;
    bool is_cut = false;
  };
  struct Rank {
    std::condition_variable_any changed;
    bool is_woken = false;
    bool is_signalled = false;
    std::vector<bool> known_lost;  // peers of whom it has been told
  };
  enum class News : uint8_t { kNothing, kParcel, kLoss };

  Span arena(int rank);
  bool share(int a, int b) const;
  void post(int from, int to, Message message) SMDIST_EXCLUDES(mutex_);
  void wake(int rank) SMDIST_EXCLUDES(mutex_);
  void clear_wake(int rank) SMDIST_EXCLUDES(mutex_);
  void signal(int rank) SMDIST_EXCLUDES(mutex_);
  void take_signals(int rank) SMDIST_EXCLUDES(mutex_);
  void leave(int rank) SMDIST_EXCLUDES(mutex_);
  // Takes something that concerns the rank, of what is there.
  News next(int rank, int* from, Parcel* parcel) SMDIST_EXCLUDES(mutex_);
  // Waits for it, or for wake().
  void await(int rank, Clock::time_point until) SMDIST_EXCLUDES(mutex_);
  // Who it is from; and when something else comes, if nothing is there.
  News look(int rank, int* from, Clock::time_point* wake_up) SMDIST_REQUIRES(mutex_);
  void tell_lost(int rank, int peer) SMDIST_EXCLUDES(mutex_);
  void separate(int a, int b) SMDIST_REQUIRES(mutex_);
  Pair& pair(int from, int to) SMDIST_REQUIRES(mutex_);

  const int size_;
  // Constant once there are transports.
  std::vector<std::vector<uint8_t>> arenas_;
  std::vector<int> hosts_;

  Mutex mutex_;
  std::deque<Pair> pairs_ SMDIST_GUARDED_BY(mutex_);
  std::deque<Rank> ranks_ SMDIST_GUARDED_BY(mutex_);
  std::chrono::microseconds longest_delay_ SMDIST_GUARDED_BY(mutex_){0};
  std::minstd_rand random_ SMDIST_GUARDED_BY(mutex_);
};

}  // namespace smdist
