// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

namespace test_device {
namespace {

// As CUDA numbers them; __init__.py has the same numbers.
constexpr int kInitializationError = 3;
constexpr int kLaunchFailure = 719;

// Time between two looks at the words for which streams wait.
constexpr auto kPoll = std::chrono::microseconds(50);

std::atomic<bool> started{false};
std::atomic<bool> forked{false};
std::atomic<bool> stopped{false};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

[[noreturn]] void throw_error(int code, const std::string& message) {
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, code,
                              "testdev error: " + message);
}

void throw_if(const std::string& error) {
  if (!error.empty()) throw_error(kLaunchFailure, error);
}

int64_t microseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

Scheduler& Scheduler::get() {
  if (forked) {
    throw_error(kInitializationError,
                "this process was forked from one that had used the device, and a device can't be "
                "used after a fork. Start processes with the method 'spawn'");
  }
  static Scheduler* const scheduler = new Scheduler;  // never destroyed, as c10's registries
  return *scheduler;
}

bool Scheduler::is_started() { return started; }
bool Scheduler::is_forked() { return forked; }
bool Scheduler::accepts_work() { return started && !forked && !stopped; }

Scheduler::Scheduler()
    : random_(from_environment("TESTDEV_SEED", 0)),
      max_delay_(std::chrono::microseconds(from_environment("TESTDEV_MAX_DELAY_US", 100))) {
  for (std::deque<Queue>& queues : queues_) {
    queues.resize(1 + 2 * kNumPoolStreams);
    for (auto high = queues.end() - kNumPoolStreams; high != queues.end(); ++high) {
      high->has_high_priority = true;
    }
  }
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  started = true;
  thread_ = std::thread([this] { work(); });
}

Scheduler::Queue& Scheduler::queue_of(const c10::Stream& stream) {
  const int device = stream.device_index();
  TORCH_CHECK(device >= 0 && device < kNumDevices, "testdev: there is no device ", device);
  std::deque<Queue>& queues = queues_[device];
  const int64_t id = stream.id();
  TORCH_CHECK(id >= 0 && id < static_cast<int64_t>(queues.size()), "testdev: device ", device,
              " has no stream ", id);
  return queues[id];
}

// Half of the operations start at once; the others wait up to max_delay_.
void Scheduler::draw_delay(Queue& queue) {
  queue.ready_at = Clock::now();
  if (queue.items.empty() || !queue.items.front().operation.run) return;
  const int64_t most = max_delay_.count();
  const auto delay = std::uniform_int_distribution<int64_t>(-most, most)(random_);
  if (delay > 0) queue.ready_at += Clock::duration(delay);
}

void Scheduler::append(Queue& queue, Item item) {
  TORCH_CHECK(!is_stopping_, "testdev: the device was shut down");
  item.number = ++last_number_;
  queue.items.push_back(std::move(item));
  if (queue.items.size() == 1 && !queue.is_running) draw_delay(queue);
  work_changed_.notify_one();
}

void Scheduler::submit(const c10::Stream& stream, Operation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  append(queue_of(stream), Item{std::move(operation), nullptr, nullptr});
}

std::shared_ptr<Mark> Scheduler::record(const c10::Stream& stream) {
  auto mark = std::make_shared<Mark>();
  const std::lock_guard<std::mutex> lock(mutex_);
  append(queue_of(stream), Item{{"record", nullptr, {}, false}, nullptr, mark});
  return mark;
}

void Scheduler::block(const c10::Stream& stream, const std::shared_ptr<Mark>& mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  append(queue_of(stream), Item{{"wait", nullptr, {}, false}, mark, nullptr});
}

void Scheduler::wait_for_word(const c10::Stream& stream, const std::atomic<uint32_t>* word,
                              uint32_t value) {
  Item item{{"wait_for_word", nullptr, {}, false}, nullptr, nullptr};
  item.word = word;
  item.value = value;
  const std::lock_guard<std::mutex> lock(mutex_);
  append(queue_of(stream), std::move(item));
}

std::shared_ptr<Mark> Scheduler::hold(const c10::Stream& stream) {
  auto mark = std::make_shared<Mark>();
  block(stream, mark);
  return mark;
}

void Scheduler::open(Mark& mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mark.is_done = true;
  work_changed_.notify_one();
}

bool Scheduler::is_done(const Mark& mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mark.is_done) throw_if(mark.error);
  return mark.is_done;
}

bool Scheduler::has_passed(const Mark& mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mark.is_done;
}

void Scheduler::await(const Mark& mark, std::unique_lock<std::mutex>& lock) {
  marks_changed_.wait(lock, [&] { return mark.is_done || is_stopping_; });
  TORCH_CHECK(mark.is_done, "testdev: the device was shut down");
}

void Scheduler::wait(const std::shared_ptr<Mark>& mark) {
  std::unique_lock<std::mutex> lock(mutex_);
  await(*mark, lock);
  throw_if(mark->error);
}

bool Scheduler::is_idle(const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Queue& queue = queue_of(stream);
  throw_if(queue.error);
  return queue.items.empty() && !queue.is_running;
}

void Scheduler::synchronize(const c10::Stream& stream) { wait(record(stream)); }

std::vector<std::shared_ptr<Mark>> Scheduler::marks_of(int device) {
  std::vector<std::shared_ptr<Mark>> marks;
  for (Queue& queue : queues_[device]) {
    marks.push_back(std::make_shared<Mark>());
    append(queue, Item{{"record", nullptr, {}, false}, nullptr, marks.back()});
  }
  return marks;
}

void Scheduler::synchronize_device(int device) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto marks = marks_of(device);
  for (const auto& mark : marks) await(*mark, lock);
  for (const auto& mark : marks) throw_if(mark->error);
}

void Scheduler::drain_device(int device) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (const auto& mark : marks_of(device)) await(*mark, lock);
}

double Scheduler::milliseconds_between(const Mark& first, const Mark& second) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(first.is_done && second.is_done, "testdev: both events must be complete");
  return std::chrono::duration<double, std::milli>(second.time - first.time).count();
}

int64_t Scheduler::new_stream(int device, bool has_high_priority) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_[device].emplace_back().has_high_priority = has_high_priority;
  return static_cast<int64_t>(queues_[device].size()) - 1;
}

int64_t Scheduler::pool_stream(int device, bool has_high_priority) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int begin = has_high_priority ? 1 + kNumPoolStreams : 1;
  return begin + next_pool_stream_[device][has_high_priority]++ % kNumPoolStreams;
}

bool Scheduler::can_step(const Queue& queue, Clock::time_point now) const {
  if (queue.items.empty() || queue.ready_at > now) return false;
  if (shared_queues_ != SharedQueues::kNone && is_behind_another(queue)) return false;
  const Item& first = queue.items.front();
  if (first.word != nullptr) return static_cast<int32_t>(first.word->load() - first.value) >= 0;
  return first.waits_for == nullptr || first.waits_for->is_done;
}

// Whether the host queued an item of another stream that shares the queue before the first one.
bool Scheduler::is_behind_another(const Queue& queue) const {
  const bool is_one = shared_queues_ == SharedQueues::kOne;
  for (const std::deque<Queue>& queues : queues_) {
    if (std::none_of(queues.begin(), queues.end(),
                     [&](const Queue& of) { return &of == &queue; })) {
      continue;
    }
    return std::any_of(queues.begin(), queues.end(), [&](const Queue& other) {
      const bool shares = is_one || other.has_high_priority == queue.has_high_priority;
      return shares && !other.items.empty() &&
             other.items.front().number < queue.items.front().number;
    });
  }
  return false;
}

void Scheduler::share_queues(SharedQueues shared) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shared_queues_ = shared;
}

// A random stream of those that can go on now, or none; then *next_time says when to look again.
Scheduler::Queue* Scheduler::choose(Clock::time_point* next_time) {
  const Clock::time_point now = Clock::now();
  *next_time = Clock::time_point::max();
  std::vector<Queue*> ready;
  for (std::deque<Queue>& queues : queues_) {
    for (Queue& queue : queues) {
      if (can_step(queue, now)) {
        ready.push_back(&queue);
      } else if (!queue.items.empty() && queue.ready_at > now) {
        *next_time = std::min(*next_time, queue.ready_at);
      } else if (!queue.items.empty() && queue.items.front().word != nullptr) {
        *next_time = std::min(*next_time, now + kPoll);
      }
    }
  }
  if (ready.empty()) return nullptr;
  return ready[std::uniform_int_distribution<size_t>(0, ready.size() - 1)(random_)];
}

void Scheduler::work() {
  pthread_setname_np(pthread_self(), "testdev");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_) {
    Clock::time_point next_time;
    if (Queue* queue = choose(&next_time)) {
      step(*queue, lock);
    } else if (next_time == Clock::time_point::max()) {
      work_changed_.wait(lock);
    } else {
      work_changed_.wait_until(lock, next_time);
    }
  }
}

// Begins the first item, or ends it if its duration is over.
void Scheduler::step(Queue& queue, std::unique_lock<std::mutex>& lock) {
  Item& first = queue.items.front();
  first.was_skipped = !queue.error.empty() && !first.operation.runs_after_error;
  if (!first.has_begun) {
    first.has_begun = true;
    first.begin = Clock::now();
    if (first.operation.duration > Clock::duration::zero() && !first.was_skipped) {
      queue.ready_at = first.begin + first.operation.duration;
      return;
    }
  }
  Item item = std::move(first);
  queue.items.pop_front();
  queue.is_running = true;
  std::string error;
  if (item.operation.run && !item.was_skipped) {
    lock.unlock();
    try {
      item.operation.run();
    } catch (const c10::Error& failure) {
      error = failure.what_without_backtrace();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    item.operation.run = nullptr;  // what it holds is freed without the lock
    lock.lock();
  }
  finish(queue, item, error);
}

void Scheduler::finish(Queue& queue, const Item& item, const std::string& error) {
  const Clock::time_point now = Clock::now();
  if (queue.error.empty()) queue.error = error;
  if (item.waits_for && queue.error.empty()) queue.error = item.waits_for->error;
  if (item.reaches) *item.reaches = Mark{true, now, queue.error};
  queue.is_running = false;
  draw_delay(queue);
  if (is_traced_ && !item.reaches && !item.was_skipped) trace(queue, item, now);
  marks_changed_.notify_all();
}

void Scheduler::trace(const Queue& queue, const Item& item, Clock::time_point now) {
  for (int device = 0; device < kNumDevices; ++device) {
    for (size_t id = 0; id < queues_[device].size(); ++id) {
      if (&queues_[device][id] != &queue) continue;
      trace_.push_back({device, static_cast<int64_t>(id), item.operation.name,
                        microseconds(item.begin - trace_start_), microseconds(now - trace_start_)});
    }
  }
}

void Scheduler::set_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  random_.seed(seed);
}

void Scheduler::set_max_delay(Clock::duration delay) {
  const std::lock_guard<std::mutex> lock(mutex_);
  max_delay_ = delay;
}

void Scheduler::clear_errors() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::deque<Queue>& queues : queues_) {
    for (Queue& queue : queues) queue.error.clear();
  }
}

void Scheduler::start_trace() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_traced_ = true;
  trace_start_ = Clock::now();
  trace_.clear();
}

std::vector<TraceEntry> Scheduler::stop_trace() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_traced_ = false;
  return std::exchange(trace_, {});
}

void Scheduler::shut_down() {
  stopped = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  work_changed_.notify_all();
  marks_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace test_device
