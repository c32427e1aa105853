// SPDX-License-Identifier: Apache-2.0
#include "staging_queue.h"

#include <ATen/core/grad_mode.h>
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "smdist/errors.h"

namespace smdist::torch_binding {

// Streams and host memory of one device.
class StagingQueue::Device {
 public:
  Device(c10::Device device, const StagingOptions& options)
      : streams(device), slots(device.type(), options.slot_bytes, options.max_slots) {}

  const CopyStreams streams;
  PinnedSlots slots;
};

// An operation, from the call until all of its pieces have ended.
struct StagingQueue::Staged {
  Device& device;
  const Pieces pieces;
  const std::vector<Copy> copy_back;
  const CopyStreams::EventPtr ready;  // the caller's work before the call
  const c10::intrusive_ptr<StagedWork> work;
  const std::function<void()> ended;
  // Used by the receiving thread only:
  size_t num_ended = 0;
  std::exception_ptr error = nullptr;
  CopyStreams::EventPtr copied = nullptr;
};

// A call in the queue: an operation of which some pieces are not copied yet, or a function.
struct StagingQueue::Entry {
  std::shared_ptr<Staged> staged;
  size_t next_piece = 0;
  std::function<void()> call;
};

// A piece whose copy to the host was queued.
struct StagingQueue::InFlight {
  std::shared_ptr<Staged> staged;
  Piece piece;
  at::Tensor slot;
  CopyStreams::EventPtr on_host;  // null if the copy failed
  bool is_last = false;
};

// Pieces that are with the engine, and the numbers of those that it has ended. The engine's callbacks
// know a piece by its number, because they may hold no tensors: the destructor of a tensor may wait
// for the GIL.
class StagingQueue::PieceTable {
 public:
  uint64_t add(InFlight piece) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.emplace(++last_number_, std::move(piece));
    return last_number_;
  }
  void end(uint64_t number, const std::exception_ptr& error) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_.emplace_back(number, error);
    }
    changed_.notify_one();
  }
  // Return the next piece that has ended, with its error; nothing after stop(), when all have ended.
  std::optional<std::pair<InFlight, std::exception_ptr>> next_ended() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !ended_.empty() || (is_stopped_ && pieces_.empty()); });
    if (ended_.empty()) return std::nullopt;
    const auto [number, error] = ended_.front();
    ended_.pop_front();
    InFlight piece = std::move(pieces_.at(number));
    pieces_.erase(number);
    return std::make_pair(std::move(piece), error);
  }
  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, InFlight> pieces_;
  std::deque<std::pair<uint64_t, std::exception_ptr>> ended_;
  uint64_t last_number_ = 0;
  bool is_stopped_ = false;
};

namespace {

// Queues by engine. Never destroyed: operations may end after other objects are destroyed.
struct Registry {
  std::mutex mutex;
  std::map<const Engine*, std::weak_ptr<StagingQueue>> queues;
  std::atomic<bool> is_used{false};
};

Registry& registry() {
  static auto* const of_process = new Registry;
  return *of_process;
}

bool is_less(const c10::Device& a, const c10::Device& b) {
  return std::make_pair(a.type(), a.index()) < std::make_pair(b.type(), b.index());
}

}  // namespace

std::shared_ptr<StagingQueue> StagingQueue::of(const std::shared_ptr<Engine>& engine,
                                               const StagingOptions& options) {
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::weak_ptr<StagingQueue>& found = known.queues[engine.get()];
  std::shared_ptr<StagingQueue> queue = found.lock();
  if (!queue) found = queue = std::make_shared<StagingQueue>(engine, options);
  known.is_used = true;
  return queue;
}

std::shared_ptr<StagingQueue> StagingQueue::find(const Engine& engine) {
  Registry& known = registry();
  if (!known.is_used) return nullptr;
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.queues.find(&engine);
  return found == known.queues.end() ? nullptr : found->second.lock();
}

StagingQueue::StagingQueue(std::shared_ptr<Engine> engine, StagingOptions options)
    : engine_(std::move(engine)),
      options_(options),
      devices_(&is_less),
      pieces_(std::make_shared<PieceTable>()),
      sender_([this] { send(); }),
      receiver_([this] { receive(); }) {
  pthread_setname_np(sender_.native_handle(), "smdist-to-host");
  pthread_setname_np(receiver_.native_handle(), "smdist-to-dev");
}

StagingQueue::~StagingQueue() {
  stop();
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.queues.find(engine_.get());
  if (found != known.queues.end() && found->second.expired()) known.queues.erase(found);
}

// Releases the GIL, for which the threads may wait when they destroy tensors.
void StagingQueue::stop() {
  std::optional<pybind11::gil_scoped_release> release;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release.emplace();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  {
    const std::lock_guard<std::mutex> lock(devices_mutex_);
    for (const auto& [_, device] : devices_) device->slots.stop();
  }
  if (sender_.joinable()) sender_.join();
  pieces_->stop();
  if (receiver_.joinable()) receiver_.join();
}

StagingQueue::Device& StagingQueue::device_of(c10::Device device) {
  const std::lock_guard<std::mutex> lock(devices_mutex_);
  std::unique_ptr<Device>& found = devices_[device];
  if (!found) found = std::make_unique<Device>(device, options_);
  return *found;
}

const CopyStreams& StagingQueue::streams_of(c10::Device device) {
  return device_of(device).streams;
}

void StagingQueue::stage(DeviceOperation operation, std::vector<Copy> copy_back,
                         c10::intrusive_ptr<StagedWork> work, std::function<void()> ended) {
  Device& device = device_of(work->device());
  CopyStreams::EventPtr ready = device.streams.mark_current_stream();
  auto staged = std::shared_ptr<Staged>(
      new Staged{device, Pieces(std::move(operation), options_.slot_bytes), std::move(copy_back),
                 std::move(ready), std::move(work), std::move(ended)});
  push({std::move(staged), 0, nullptr});
}

void StagingQueue::push(Entry entry) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back(std::make_unique<Entry>(std::move(entry)));
    ++num_unsubmitted_;
  }
  changed_.notify_all();
}

bool StagingQueue::run_in_order(std::function<void()> call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_unsubmitted_ == 0) return false;
    entries_.push_back(std::make_unique<Entry>(Entry{nullptr, 0, std::move(call)}));
    ++num_unsubmitted_;
  }
  changed_.notify_all();
  return true;
}

void StagingQueue::record_submitted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_unsubmitted_;
}

// Copies as many pieces as there is memory for, and submits the oldest one when it can copy no more.
void StagingQueue::send() {
  const at::NoGradGuard no_gradient;
  std::deque<InFlight> copying;
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

// Queues the copy of the entry's next piece to the host. Returns false if no memory is free until
// one of the pieces in `copying` ends.
bool StagingQueue::copy_piece(const Entry& entry, std::deque<InFlight>& copying) {
  Staged& staged = *entry.staged;
  InFlight next;
  next.staged = entry.staged;
  next.is_last = entry.next_piece + 1 == staged.pieces.count();
  try {
    const size_t bytes = staged.pieces.bytes_of(entry.next_piece);
    PinnedSlots& slots = staged.device.slots;
    if (bytes > slots.slot_bytes()) {
      next.slot = slots.allocate(bytes);
    } else {
      next.slot = copying.empty() ? slots.acquire() : slots.try_acquire();
      if (!next.slot.defined() && !copying.empty()) return false;
      TORCH_CHECK(next.slot.defined(), "the process group was shut down");
    }
    next.piece = staged.pieces.piece(entry.next_piece, next.slot);
    next.on_host = staged.device.streams.copy_to_host(next.piece.to_host, staged.ready);
    copying.push_back(std::move(next));
  } catch (...) {
    while (!copying.empty()) submit_oldest(copying);
    const bool is_last = next.is_last;
    const uint64_t number = pieces_->add(std::move(next));
    pieces_->end(number, abort_after_failed_copy(staged));
    if (is_last) record_submitted();
  }
  return true;
}

void StagingQueue::submit_oldest(std::deque<InFlight>& copying) {
  InFlight oldest = std::move(copying.front());
  copying.pop_front();
  const std::shared_ptr<Staged> staged = oldest.staged;
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
  } catch (const Error&) {
    pieces_->end(number, std::current_exception());
  } catch (...) {
    pieces_->end(number, abort_after_failed_copy(*staged));
  }
  if (is_last) record_submitted();
}

void StagingQueue::receive() {
  const at::NoGradGuard no_gradient;
  while (const auto next = pieces_->next_ended()) copy_results(next->first, next->second);
}

// Queues the copy of a piece's results to the device.
void StagingQueue::copy_results(const InFlight& piece, std::exception_ptr error) {
  Staged& staged = *piece.staged;
  if (error && !staged.error) staged.error = error;
  bool is_slot_free = true;
  CopyStreams::EventPtr copied;
  if (!staged.error && !piece.piece.to_device.empty()) {
    try {
      copied = staged.device.streams.copy_to_device(piece.piece.to_device, staged.ready);
      staged.copied = copied;
    } catch (...) {
      staged.error = abort_after_failed_copy(staged);
      is_slot_free = false;  // a copy may have been queued
    }
  }
  if (piece.slot.defined() && is_slot_free) staged.device.slots.release(piece.slot, copied);
  if (++staged.num_ended == staged.pieces.count()) end_operation(staged);
}

void StagingQueue::end_operation(Staged& staged) {
  if (!staged.error && !staged.copy_back.empty()) {
    try {
      staged.copied = staged.device.streams.copy_to_device(staged.copy_back, staged.ready);
    } catch (...) {
      staged.error = abort_after_failed_copy(staged);
    }
  }
  staged.ended();
  staged.work->complete_part(staged.error, staged.copied);
}

std::exception_ptr StagingQueue::abort_after_failed_copy(const Staged& staged) {
  std::string what = "unknown exception";
  try {
    throw;
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  }
  const std::string device = staged.device.streams.device().str();
  engine_->abort("a copy between " + device + " of rank " + std::to_string(engine_->rank()) +
                 " and the host failed: " + what);
  return std::current_exception();
}

}  // namespace smdist::torch_binding
