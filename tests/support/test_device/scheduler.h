// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_memory.h"

namespace test_device {

using Clock = std::chrono::steady_clock;

// Something that a stream does when its turn comes.
struct Operation {
  std::string name;
  std::function<void()> run;      // what it throws becomes the stream's error
  Clock::duration duration{};     // how long the stream is busy before `run` is called
  bool runs_after_error = false;  // other operations are skipped on a stream with an error
};

// A place in a stream's queue. An event has one for each time that it was recorded.
struct Mark {
  bool is_done = false;
  Clock::time_point time;
  std::string error;  // that of the stream when it reached the mark; empty if it had none
};

// What a stream did, for tests that ask about order and overlap. Times are microseconds.
struct TraceEntry {
  int device;
  int64_t stream;
  std::string name;
  int64_t begin_us;
  int64_t end_us;
};

// Runs the operations of all streams of all devices on one thread.
//
// A stream keeps the order of its operations. Between streams the order is random: each operation
// starts after a random delay, and of the streams that can go on a random one does. Both come
// from a seed. An operation with a duration leaves the thread to other streams meanwhile, so
// streams overlap as those of a real device do.
//
// An operation that fails leaves an error on its stream. Later operations there are skipped, marks
// are still reached and carry the error, and a stream that waits for such a mark takes the error
// over. The host sees the error when it synchronizes or queries; it stays until clear_errors().
//
// Thread safety: every function may be called from any thread. Operations run without any lock of
// the scheduler. In a process that was forked after the first use, get() throws.
class Scheduler final {
 public:
  // Per device and priority; their ids follow that of the default stream, 0. A high priority has no
  // effect but that the pool has other streams for it, and share_queues().
  static constexpr int kNumPoolStreams = 8;

  static Scheduler& get();     // starts the thread at its first call
  static bool is_started();    // whether this process, or the one it was forked from, has it
  static bool is_forked();     // whether that was a parent of this process
  static bool accepts_work();  // started, not forked, and not shut down

  void submit(const c10::Stream& stream, Operation operation);
  std::shared_ptr<Mark> record(const c10::Stream& stream);
  void block(const c10::Stream& stream, const std::shared_ptr<Mark>& mark);

  // Lets a stream wait until a word of host memory is `value` or later; the host may write it, too.
  void wait_for_word(const c10::Stream& stream, const std::atomic<uint32_t>* word, uint32_t value);

  // Holds a stream, after what is queued, until open() is called with the mark.
  std::shared_ptr<Mark> hold(const c10::Stream& stream);
  void open(Mark& mark);

  // These throw c10::AcceleratorError if the mark or the stream has an error.
  bool is_done(const Mark& mark);
  void wait(const std::shared_ptr<Mark>& mark);
  bool is_idle(const c10::Stream& stream);
  void synchronize(const c10::Stream& stream);
  void synchronize_device(int device);

  bool has_passed(const Mark& mark);  // whether it is reached, with or without an error
  void drain_device(int device);      // waits until every stream is idle, and ignores errors
  double milliseconds_between(const Mark& first, const Mark& second);

  int64_t new_stream(int device, bool has_high_priority);
  int64_t pool_stream(int device, bool has_high_priority);  // one of the pool's, in turn

  // Lets the streams of a device share one queue, or one for each priority, so that a stream that
  // waits holds up the others of its queue.
  enum class SharedQueues { kNone, kOne, kOneForEachPriority };
  void share_queues(SharedQueues shared);

  void set_seed(uint64_t seed);
  void set_max_delay(Clock::duration delay);
  void clear_errors();
  void start_trace();
  std::vector<TraceEntry> stop_trace();
  void shut_down();  // ends the thread; what is still queued never runs

 private:
  struct Item {
    Operation operation;
    std::shared_ptr<Mark> waits_for;
    std::shared_ptr<Mark> reaches;
    const std::atomic<uint32_t>* word = nullptr;  // the item waits until it is `value` or later
    uint32_t value = 0;
    uint64_t number = 0;  // in the order in which the host queued the items of all streams
    Clock::time_point begin{};
    bool has_begun = false;
    bool was_skipped = false;  // because its stream has an error
  };
  struct Queue {
    std::deque<Item> items;
    Clock::time_point ready_at;  // of the first item
    bool is_running = false;
    bool has_high_priority = false;
    std::string error;
  };

  Scheduler();
  Queue& queue_of(const c10::Stream& stream);
  void append(Queue& queue, Item item);
  void draw_delay(Queue& queue);
  bool can_step(const Queue& queue, Clock::time_point now) const;
  bool is_behind_another(const Queue& queue) const;
  Queue* choose(Clock::time_point* next_time);
  void step(Queue& queue, std::unique_lock<std::mutex>& lock);
  void finish(Queue& queue, const Item& item, const std::string& error);
  void trace(const Queue& queue, const Item& item, Clock::time_point now);
  void work();
  void await(const Mark& mark, std::unique_lock<std::mutex>& lock);
  std::vector<std::shared_ptr<Mark>> marks_of(int device);

  std::mutex mutex_;
  std::condition_variable work_changed_;   // the thread waits for it
  std::condition_variable marks_changed_;  // hosts wait for it
  std::array<std::deque<Queue>, kNumDevices> queues_;
  std::array<std::array<int, 2>, kNumDevices> next_pool_stream_{};  // by priority
  std::mt19937_64 random_;
  Clock::duration max_delay_;
  bool is_stopping_ = false;
  SharedQueues shared_queues_ = SharedQueues::kNone;
  uint64_t last_number_ = 0;
  bool is_traced_ = false;
  Clock::time_point trace_start_;
  std::vector<TraceEntry> trace_;
  std::thread thread_;
};

}  // namespace test_device
