// SPDX-License-Identifier: Apache-2.0
// What tests set and read, as operators of the namespace `testdev`; __init__.py has their words.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>

#include "copies.h"
#include "copy_faults.h"
#include "current.h"
#include "deferred_calls.h"
#include "device_allocator.h"
#include "generators.h"
#include "held_copies.h"
#include "pinned_allocator.h"
#include "scheduler.h"

namespace test_device {
namespace {

Clock::duration from_milliseconds(double milliseconds) {
  TORCH_CHECK(milliseconds >= 0, "testdev: a time is not negative");
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(milliseconds));
}

void sleep(double milliseconds) {
  Scheduler::get().submit(current_stream(current_device()),
                          {"sleep", [] {}, from_milliseconds(milliseconds)});
}

// The streams that tests hold, by the numbers that they got.
struct HeldStreams {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Mark>> marks;
  int64_t next_number = 0;
};

HeldStreams& held_streams() {
  static HeldStreams* const streams = new HeldStreams;
  return *streams;
}

int64_t hold_stream() {
  HeldStreams& held = held_streams();
  const std::lock_guard<std::mutex> lock(held.mutex);
  held.marks.emplace(held.next_number, Scheduler::get().hold(current_stream(current_device())));
  return held.next_number++;
}

void open_stream(int64_t number) {
  HeldStreams& held = held_streams();
  const std::lock_guard<std::mutex> lock(held.mutex);
  const auto found = held.marks.find(number);
  TORCH_CHECK(found != held.marks.end(), "testdev: no stream is held under the number ", number);
  Scheduler::get().open(*found->second);
  held.marks.erase(found);
}

void set_seed(int64_t seed) { Scheduler::get().set_seed(static_cast<uint64_t>(seed)); }

void share_queues(bool is_shared, bool for_each_priority) {
  using Shared = Scheduler::SharedQueues;
  const Shared shared = for_each_priority ? Shared::kOneForEachPriority : Shared::kOne;
  Scheduler::get().share_queues(is_shared ? shared : Shared::kNone);
}

void set_max_delay(double milliseconds) {
  Scheduler::get().set_max_delay(from_milliseconds(milliseconds));
}

void set_memory_limit(int64_t bytes, int64_t device) {
  TORCH_CHECK(bytes >= 0, "testdev: a number of bytes is not negative");
  check_device(static_cast<c10::DeviceIndex>(device));
  device_allocator().set_limit(static_cast<int>(device), static_cast<size_t>(bytes));
}

void set_pinned_limit(int64_t bytes) {
  TORCH_CHECK(bytes >= 0, "testdev: a number of bytes is not negative");
  pinned_allocator().set_limit(static_cast<size_t>(bytes));
}

void fail_copy(int64_t number, std::optional<std::string> kind) {
  copy_faults().fail_copy(number, kind ? std::optional(copy_kind(*kind)) : std::nullopt);
}

void hold_copies(const std::string& kind) { held_copies().hold(copy_kind(kind)); }
void release_copies(const std::string& kind) { held_copies().release(copy_kind(kind)); }
void clear_errors() { Scheduler::get().clear_errors(); }
void start_trace() { Scheduler::get().start_trace(); }

using Trace = std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<std::string>,
                         std::vector<int64_t>, std::vector<int64_t>>;

Trace stop_trace() {
  Trace trace;
  for (const TraceEntry& entry : Scheduler::get().stop_trace()) {
    std::get<0>(trace).push_back(entry.device);
    std::get<1>(trace).push_back(entry.stream);
    std::get<2>(trace).push_back(entry.name);
    std::get<3>(trace).push_back(entry.begin_us);
    std::get<4>(trace).push_back(entry.end_us);
  }
  return trace;
}

std::tuple<int64_t, int64_t> take_stale_uses() {
  return {stale_uses().device.exchange(0), stale_uses().pinned.exchange(0)};
}

int64_t pinned_allocations() { return pinned_allocator().get_stats().num_host_alloc; }

c10::Stream stream_from_pool(int64_t device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  return guard.getStreamFromGlobalPool(device_at(static_cast<c10::DeviceIndex>(device)));
}

at::Generator generator_of(int64_t device) {
  return default_generator(static_cast<c10::DeviceIndex>(device));
}

int64_t device_count() { return kNumDevices; }
bool is_initialized() { return Scheduler::is_started(); }
bool is_in_bad_fork() { return Scheduler::is_forked(); }
void initialize() { Scheduler::get(); }

void shut_down() {
  if (Scheduler::accepts_work()) Scheduler::get().shut_down();
}

TORCH_LIBRARY(testdev, library) {
  library.def("sleep(float milliseconds) -> ()", sleep);
  library.def("hold_stream() -> int", hold_stream);
  library.def("open_stream(int number) -> ()", open_stream);
  library.def("hold_copies(str kind) -> ()", hold_copies);
  library.def("release_copies(str kind) -> ()", release_copies);
  library.def("set_seed(int seed) -> ()", set_seed);
  library.def("share_queues(bool is_shared, bool for_each_priority) -> ()", share_queues);
  library.def("set_capturing(bool is_capturing) -> ()", set_capturing);
  library.def("set_max_delay(float milliseconds) -> ()", set_max_delay);
  library.def("set_copy_bandwidth(float bytes_per_second) -> ()", set_copy_bandwidth);
  library.def("set_memory_limit(int bytes, int device) -> ()", set_memory_limit);
  library.def("set_pinned_limit(int bytes) -> ()", set_pinned_limit);
  library.def("set_deferred(bool is_deferred) -> ()", set_deferred);
  library.def("fail_copy(int number, str? kind) -> ()", fail_copy);
  library.def("clear_errors() -> ()", clear_errors);
  library.def("start_trace() -> ()", start_trace);
  library.def("stop_trace() -> (int[], int[], str[], int[], int[])", stop_trace);
  library.def("take_stale_uses() -> (int, int)", take_stale_uses);
  library.def("pinned_allocations() -> int", pinned_allocations);
  library.def("stream_from_pool(int device) -> Stream", stream_from_pool);
  library.def("default_generator(int device) -> Generator?", generator_of);
  library.def("device_count() -> int", device_count);
  library.def("initialize() -> ()", initialize);
  library.def("is_initialized() -> bool", is_initialized);
  library.def("is_in_bad_fork() -> bool", is_in_bad_fork);
  library.def("shut_down() -> ()", shut_down);
}

}  // namespace
}  // namespace test_device
