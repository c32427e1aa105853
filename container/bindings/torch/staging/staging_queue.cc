// SPDX-License-Identifier: Apache-2.0
#include "staging_queue.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "failed_copy.h"
#include "smdist/errors.h"

namespace smdist::torch_binding {
namespace {

// Time for which a piece waits for one of the slots, before it gets an additional one. Slots that
// stay in use for so long may belong to operations that other ranks submit after the one that
// waits: two groups may have another order on each rank.
constexpr std::chrono::seconds kSlotPatience{1};

constexpr const char* kShutDown = "the engine was shut down, so it cannot start an operation";

// Releases the GIL, for which the threads may wait when they destroy tensors.
class WithoutGil final {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

void record_uses(const DeviceOperation& operation, const std::vector<Copy>& copy_back,
                 const CopyStreams& streams) {
  for (const at::Tensor& input : operation.inputs) streams.record_use(input);
  for (const at::Tensor& output : operation.outputs) streams.record_use(output);
  for (const Copy& copy : copy_back) streams.record_use(copy.target);
}

std::exception_ptr shut_down_error() {
  return std::make_exception_ptr(
      Error("the process group was shut down before this operation could start"));
}

bool is_less(const c10::Device& a, const c10::Device& b) {
  return std::make_pair(a.type(), a.index()) < std::make_pair(b.type(), b.index());
}

}  // namespace

StagingQueue::StagingQueue(std::shared_ptr<Engine> engine, StagingOptions options)
    : engine_(std::move(engine)),
      options_(options),
      awaited_(std::make_shared<AwaitedWorks>()),
      devices_(&is_less),
      pieces_(std::make_shared<PieceTable>()),
      result_copies_(engine_, pieces_, awaited_) {
  sender_ = std::thread([this] { send(); });
  pthread_setname_np(sender_.native_handle(), "smdist-to-host");
}

StagingQueue::~StagingQueue() { stop(); }

void StagingQueue::finish_awaited() {
  const WithoutGil without_gil;
  awaited_->wait();
}

void StagingQueue::stop() {
  const WithoutGil without_gil;
  const std::lock_guard<std::mutex> stopping(stop_mutex_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
  }
  changed_.notify_all();
  {
    const std::lock_guard<std::mutex> lock(devices_mutex_);
    for (const auto& [_, device] : devices_) device->slots.stop();
  }
  sender_.join();
  pieces_->stop();
  result_copies_.stop();
}

StagingDevice& StagingQueue::device_of(c10::Device device) {
  TORCH_CHECK(!is_in_child_,
              "the process group belongs to the process from which this one was forked, and cannot "
              "be used here. Call init_process_group() in the process that calls collectives.");
  const std::lock_guard<std::mutex> lock(devices_mutex_);
  std::unique_ptr<StagingDevice>& found = devices_[device];
  if (found) return *found;
  const bool is_first = devices_.size() == 1;  // the shared memory has slots for one device
  SharedMemory memory;
  if (is_first && options_.shares_slots) memory = engine_->shared_memory();
  found = std::make_unique<StagingDevice>(device, options_, awaited_, std::move(memory));
  if (!found->why_not_shared.empty() && engine_->rank() == 0) {
    TORCH_WARN("smdist copies what it stages from ", device,
               " once more for the other ranks of the host, because the memory that they share "
               "cannot be pinned: ",
               found->why_not_shared, ".");
  }
  if (!found->why_wait_blocks_host.empty() && engine_->rank() == 0) {
    TORCH_WARN(
        "wait() on an operation of smdist blocks the host until the results are on their "
        "way to ",
        device, ": ", found->why_wait_blocks_host, ".");
  }
  return *found;
}

const DeviceContext& StagingQueue::context_of(c10::Device device) {
  return device_of(device).context;
}

void StagingQueue::stage(DeviceOperation operation, std::vector<Copy> copy_back,
                         c10::intrusive_ptr<StagedWork> work, std::function<void()> ended) {
  StagingDevice& device = device_of(work->device());
  CopyStreams::EventPtr ready = device.context.streams.mark_current_stream();
  raise_failure();
  record_uses(operation, copy_back, device.context.streams);
  auto staged = std::shared_ptr<StagedOperation>(new StagedOperation{
      device, Pieces(std::move(operation), options_.slot_bytes), std::move(copy_back),
      std::move(ready), std::move(work), std::move(ended)});
  allocate_undivided(*staged);
  auto entry = std::make_unique<Entry>(Entry{std::move(staged), 0, nullptr});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopped_) throw UsageError(kShutDown);
    entries_.push_back(std::move(entry));
    ++num_unsubmitted_;
  }
  changed_.notify_all();
}

// Raises the error of the engine: no operation is started whose wait() would return before its
// error is known.
void StagingQueue::raise_failure() {
  if (const std::exception_ptr failure = engine_->failure()) {
    awaited_->take_error();  // drops the late error, which has the same cause
    std::rethrow_exception(failure);
  }
}

void StagingQueue::raise_late_error() {
  if (const std::exception_ptr late = awaited_->take_error()) std::rethrow_exception(late);
}

// Allocates the memory of an operation that is not divided. Its memory is not limited, so that it
// waits for no other operation: a rank may post any number of receives before the sends for which
// its peers wait. The caller allocates it, because a device may hold up an allocation while a
// stream waits, and without the thread that copies, the stream might wait for ever.
void StagingQueue::allocate_undivided(StagedOperation& staged) {
  if (staged.pieces.is_divided()) return;
  try {
    staged.memory = allocate_pinned(staged.work->device().type(), staged.pieces.bytes_of(0));
  } catch (...) {
    std::rethrow_exception(abort_after_failed_copy(*engine_, staged.work->device()));
  }
}

bool StagingQueue::run_in_order(std::function<void()> call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_unsubmitted_ == 0 || is_stopped_) return false;
    entries_.push_back(std::make_unique<Entry>(Entry{nullptr, 0, std::move(call)}));
    ++num_unsubmitted_;
  }
  changed_.notify_all();
  return true;
}

bool StagingQueue::has_unsubmitted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_unsubmitted_ > 0;
}

void StagingQueue::record_submitted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_unsubmitted_;
}

// Copies as many pieces as there is memory for, and submits the oldest one when it can copy no
// more.
void StagingQueue::send() {
  std::deque<PieceInFlight> copying;
  std::unique_ptr<Entry> entry;
  while (true) {
    if (!entry) entry = next_entry(copying.empty());
    if (!entry && copying.empty()) return;  // stopped
    if (!entry) {
      submit_oldest(copying);
    } else if (entry->call) {
      while (!copying.empty()) submit_oldest(copying);
      entry->call();
      entry.reset();
      record_submitted();
    } else if (!copy_piece(*entry, copying)) {
      submit_oldest(copying);
    } else if (++entry->next_piece == entry->staged->pieces.count()) {
      entry.reset();
    }
  }
}

// Returns the next entry. Without one, waits for it, or returns null if it may not wait or is
// stopped.
std::unique_ptr<StagingQueue::Entry> StagingQueue::next_entry(bool may_wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (may_wait) changed_.wait(lock, [this] { return !entries_.empty() || is_stopped_; });
  if (entries_.empty()) return nullptr;
  std::unique_ptr<Entry> entry = std::move(entries_.front());
  entries_.pop_front();
  return entry;
}

// Queues the copy of the entry's next piece to the host. Returns false if the caller's work before
// the call is not complete, or no memory is free, and pieces in `copying` can be submitted
// meanwhile.
//
// No stream of staging waits for the caller's work, because the thread does: the caller's stream
// may wait for an earlier operation, whose results are copied to the device on a stream that may
// share a queue of the device with this one.
bool StagingQueue::copy_piece(const Entry& entry, std::deque<PieceInFlight>& copying) {
  StagedOperation& staged = *entry.staged;
  PieceInFlight next;
  next.staged = entry.staged;
  next.is_last = entry.next_piece + 1 == staged.pieces.count();
  try {
    check_running();
    if (!copying.empty() && !staged.ready->query()) return false;
    staged.ready->synchronize();
    next.slot = memory_for(staged, entry.next_piece, copying.empty());
    if (!next.slot.defined()) return false;
    next.piece = staged.pieces.piece(entry.next_piece, next.slot);
    next.on_host = staged.device.context.streams.copy_to_host(next.piece.to_host, nullptr);
    copying.push_back(std::move(next));
  } catch (const Error&) {
    fail_piece(std::move(next), copying, std::current_exception());
  } catch (...) {
    fail_piece(std::move(next), copying, abort_after_failed_copy(*engine_, staged.work->device()));
  }
  return true;
}

void StagingQueue::fail_piece(PieceInFlight piece, std::deque<PieceInFlight>& copying,
                              const std::exception_ptr& error) {
  while (!copying.empty()) submit_oldest(copying);
  const bool is_last = piece.is_last;
  pieces_->end(pieces_->add(std::move(piece)), error);
  if (is_last) record_submitted();
}

// Returns memory for a piece, or an undefined tensor if it would have to wait and may not. A piece
// is longer than a slot if there are more ranks than a slot has parts.
at::Tensor StagingQueue::memory_for(StagedOperation& staged, size_t piece, bool may_wait) {
  if (!staged.pieces.is_divided()) return std::move(staged.memory);
  PinnedSlots& slots = staged.device.slots;
  const size_t bytes = staged.pieces.bytes_of(piece);
  if (bytes > slots.slot_bytes()) return allocate_pinned(staged.work->device().type(), bytes);
  if (!may_wait) return slots.try_acquire();
  at::Tensor slot = slots.acquire(kSlotPatience);
  if (!slot.defined()) throw UsageError(kShutDown);
  return slot;
}

// Throws the error that ended the engine, so that nothing is copied for it.
void StagingQueue::check_running() const {
  if (const std::exception_ptr error = engine_->failure()) std::rethrow_exception(error);
  if (!engine_->is_running()) std::rethrow_exception(shut_down_error());
}

void StagingQueue::submit_oldest(std::deque<PieceInFlight>& copying) {
  PieceInFlight oldest = std::move(copying.front());
  copying.pop_front();
  const std::shared_ptr<StagedOperation> staged = oldest.staged;
  const bool is_last = oldest.is_last;
  const CopyStreams::EventPtr on_host = oldest.on_host;
  const DeviceOperation& description = staged->pieces.operation();
  Operation operation = description.operation;
  operation.inputs = oldest.piece.inputs;
  operation.outputs = oldest.piece.outputs;
  const uint64_t number = pieces_->add(std::move(oldest));
  operation.ended = [pieces = pieces_, number](const std::exception_ptr& error) {
    pieces->end(number, error);
  };
  try {
    on_host->synchronize();
    staged->work->set_sequence(engine_->submit(description.group, std::move(operation)));
  } catch (const UsageError&) {  // also if the engine was shut down since check_running()
    pieces_->end(number, engine_->is_running() ? std::current_exception() : shut_down_error());
  } catch (const Error&) {
    pieces_->end(number, std::current_exception());
  } catch (...) {
    pieces_->end(number, abort_after_failed_copy(*engine_, staged->work->device()));
  }
  if (is_last) record_submitted();
}

}  // namespace smdist::torch_binding
