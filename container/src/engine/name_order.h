// SPDX-License-Identifier: Apache-2.0
// Start of operations that carry a name, in one order on all ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "smdist/engine.h"

namespace smdist {

// Starts operations in one order on all ranks of a group, although each rank brings them in an
// order of its own.
//
// A rank sends the hash of each name that it brings to the first rank of the group. When all ranks
// have brought a name, the first rank sends its hash to all, and each rank starts the operation. So
// an operation waits for one message to the first rank and one from it. The messages are sends and
// receives of the engine. A name that is brought again, before its operation has started, is the
// next operation of that name.
//
// Thread safety: all methods may be called from any thread, but not from a callback `ended` of the
// engine.
class NameOrder final : public std::enable_shared_from_this<NameOrder> {
 public:
  struct Settings {
    std::weak_ptr<Engine> engine;
    uint32_t group = 0;        // number of the group, whose sends and receives nobody else uses
    std::vector<int> members;  // ranks of the job that are in the group
    int rank = 0;              // this rank's number in the group
    std::chrono::milliseconds
        timeout{};  // time after which a name that some ranks lack ends the job
    std::function<void(const std::string&)> log;   // receives a line about names that wait
    std::chrono::milliseconds late_after{10'000};  // time after which a line is logged
  };
  using Start = std::function<void()>;
  using Fail = std::function<void(const std::exception_ptr&)>;

  static std::shared_ptr<NameOrder> create(Settings settings);
  ~NameOrder();
  NameOrder(const NameOrder&) = delete;
  NameOrder& operator=(const NameOrder&) = delete;

  // Bring an operation. start: called once all ranks have brought the name, one operation after
  // another in the same order on all ranks; it submits the operation. fail: called if `start` has
  // thrown, or instead of it if the engine has failed; it may bring further operations.
  void bring(const std::string& name, Start start, Fail fail);

  // Let operations that other ranks bring start without this rank, until all ranks have called this
  // as often. Call it when this rank waits for no operation that it has brought.
  void join();

 private:
  using Clock = std::chrono::steady_clock;

  enum class Kind : uint64_t { kBrought, kStart, kLate, kJoined };

  // A message; it has the same size always, because a receive must know it.
  struct Message {
    static constexpr size_t kMaxMissing = 13;
    Kind kind = Kind::kBrought;
    uint64_t name = 0;                   // hash
    uint64_t num_missing = 0;            // ranks of the group that have not brought the name
    uint64_t missing[kMaxMissing] = {};  // the first of them
  };

  struct Brought {
    std::string name;
    Start start;
    Fail fail;
    Clock::time_point since;
    bool is_told = false;
  };

  // Calls of a name on all ranks, as the first rank has counted them.
  struct Count {
    std::vector<uint32_t> brought;  // by rank of the group: operations that it waits to start
    Clock::time_point since;
    bool is_told = false;
  };

  explicit NameOrder(Settings settings);

  bool is_first() const { return settings_.rank == 0; }
  size_t size() const { return settings_.members.size(); }
  void begin();  // posts the first receives, and starts the thread
  void receive(int peer);
  void send(int peer, const Message& message);
  void handle(int peer, const Message& message);
  void count(int rank, uint64_t name);
  void start_complete(uint64_t name);
  void on_joined(int rank);
  bool has_joined(size_t rank) const { return !joined_.empty() && joined_[rank] > 0; }
  void start(uint64_t name);
  void fail_all(const std::exception_ptr& error);
  void fail_later(const Fail& fail, const std::exception_ptr& error);
  // Call `body` under the lock, and the functions of fail_later() after it.
  template <typename Body>
  void guarded(const Body& body);
  void watch();
  void look(Clock::time_point now);
  void look_at_counts(Clock::time_point now);
  void tell(Brought& brought, const std::string& ranks);
  std::string text_of(const Message& message) const;

  const Settings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_:
  std::map<uint64_t, std::deque<Brought>> waiting_;  // operations of this rank, by hash
  std::map<uint64_t, Count> counts_;                 // kept by the first rank
  // By rank of the group: how often it has joined, less how often all have; empty: none has joined.
  std::vector<uint32_t> joined_;
  size_t num_unsent_ = 0;  // messages that the receiver has not taken
  std::exception_ptr failure_;
  std::vector<std::function<void()>> failing_;  // calls of `fail` to make without the lock
  bool has_begun_ = false;
  bool is_ending_ = false;
  std::thread watcher_;
};

}  // namespace smdist
