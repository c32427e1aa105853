// SPDX-License-Identifier: Apache-2.0
#include "async_operation.h"

#include <atomic>
#include <new>
#include <unordered_map>
#include <utility>

#include "smdist/errors.h"
#include "status.h"

namespace smdist::tensorflow_binding {
namespace {

// Never destroyed, because TensorFlow may drop handles at the very end of the process.
struct Table {
  std::mutex mutex;
  std::unordered_map<int64_t, AsyncOperationPtr> open;  // by handle; guarded by mutex, like `next`
  int64_t next = 1;
  std::atomic<int64_t> under_way{0};
  std::atomic<int64_t> called{0};
  std::atomic<int64_t> failed{0};
};

Table& table() {
  static auto* const of_process = new Table;
  return *of_process;
}

AsyncOperationPtr remove(int64_t handle) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const auto node = table().open.extract(handle);
  return node.empty() ? nullptr : node.mapped();
}

int64_t keep(AsyncOperationPtr pending) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const int64_t handle = table().next++;
  table().open.emplace(handle, std::move(pending));
  return handle;
}

// Called when TensorFlow drops the tensor that holds a handle.
void drop_handle(void* data, size_t, void*) {
  remove(*static_cast<int64_t*>(data));
  ::operator delete(data, std::align_val_t{kAlignment});
}

// Sets output 0 to the handle, in memory with a deallocator of its own: when TensorFlow frees it,
// no op can wait for the handle any more.
void set_handle(TF_OpKernelContext* context, int64_t handle) {
  auto* const data =
      static_cast<int64_t*>(::operator new(kAlignment, std::align_val_t{kAlignment}));
  *data = handle;
  const TensorPtr tensor(
      TF_NewTensor(TF_INT64, nullptr, 0, data, sizeof handle, &drop_handle, nullptr),
      DeleteTensor{});
  const Status status;
  TF_SetOutput(context, 0, tensor.get(), status.get());
  status.check();
}

// Returns whether the last tensor is the one that Python adds as a hash of variable names
// (reducing.py): an empty tensor of shape [0, 0, 0, hash].
bool has_mark(const Results& results) {
  if (results.parts.size() < 2) return false;
  const Shape& last = results.parts.back().shape;
  return last.size() == 4 && last[0] == 0 && last[1] == 0 && last[2] == 0;
}

std::string title_of(const Results& results) {
  constexpr size_t kShown = 8;
  const size_t count = results.parts.size() - (has_mark(results) ? 1 : 0);
  std::string text = wire_of(results.type).has_arithmetic ? name_of(wire_of(results.type).dtype)
                                                          : "dtype " + std::to_string(results.type);
  for (size_t i = 0; i < count && i < kShown; ++i) {
    text += (i == 0 ? " " : ", ") + text_of(results.parts[i].shape);
  }
  if (count > kShown) text += " and " + std::to_string(count - kShown) + " more";
  return text;
}

// Submits the operation once all ranks of the group have brought its name.
void submit_by_name(const EngineContext& current, const SubmissionAttributes& where,
                    const AsyncOperationPtr& pending, Operation operation) {
  const NamedGroup named = named_group(where.group, current);
  const Collective kind = operation.kind;
  const auto fail = [pending](const std::exception_ptr& error) {
    pending->end(error);
    pending->finish();
  };
  const auto shared = std::make_shared<Operation>(std::move(operation));
  const auto start = [engine = std::weak_ptr<Engine>(current.engine), group = named.group, kind,
                      shared] {
    const std::shared_ptr<Engine> running = engine.lock();
    if (!running) throw NoEngineError("the engine of this process was shut down");
    activity().begin(kind);
    ++table().under_way;
    try {
      running->submit(group, std::move(*shared));
    } catch (...) {
      activity().end(kind);
      --table().under_way;
      throw;
    }
  };
  named.order->bring(where.key, start, fail);
}

}  // namespace

void AsyncOperation::then(std::function<void()> next) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_finished_) {
      next_ = std::move(next);
      return;
    }
  }
  next();
}

void AsyncOperation::finish() {
  std::function<void()> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_finished_ = true;
    next = std::move(next_);
  }
  if (next) next();
}

void AsyncOperation::end(const std::exception_ptr& error) {
  if (error) ++table().failed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    has_ended_ = true;
  }
  changed_.notify_all();
}

void AsyncOperation::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return has_ended_; });
  if (error_) fail(error_);
}

bool AsyncOperation::ends_within(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return has_ended_; });
}

std::string AsyncOperation::own_call() const {
  if (label_.empty()) return "expected the results " + title_of(results_);
  // other kinds may be one of several operations of the call, and their label has its tensors
  const bool is_whole = kind_ == Collective::kAllReduce || kind_ == Collective::kBroadcast;
  return "called " + label_ + (is_whole ? " of " + title_of(results_) : "");
}

// Throws the error. Adds this rank's own shapes to a mismatch, because ranks exchange only a hash
// of them.
void AsyncOperation::fail(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& usage) {
    const char* const names =
        has_mark(results_) ? "for variables of the same names in the same order, " : "";
    const std::string text = std::string(usage.what()) + ". This rank " + own_call() +
                             ". All ranks must pass tensors of the same dtype and shapes, " +
                             names + "and call the same operations in the same order.";
    if (usage.fault() == nullptr) throw UsageError(text);
    Fault fault = *usage.fault();
    fault.text = text;
    throw UsageError(fault);
  }
}

void submit(TF_OpKernelContext* context, const EngineContext& current, Operation operation,
            Results results, std::vector<TensorPtr> read, const SubmissionAttributes& where) {
  const Collective kind = operation.kind;
  if (!is_point_to_point(kind)) ++table().called;
  const auto pending = std::make_shared<AsyncOperation>(std::move(results), kind, where.label);
  operation.timeout = current.timeout;
  operation.ended = [pending, kind](const std::exception_ptr& error) {
    activity().end(kind);
    --table().under_way;
    pending->end(error);
  };
  operation.done = [pending, read = std::move(read)](const std::exception_ptr&) {
    pending->finish();
  };
  if (!where.key.empty()) {
    submit_by_name(current, where, pending, std::move(operation));
    return set_handle(context, keep(pending));
  }
  activity().begin(kind);
  ++table().under_way;
  try {
    current.engine->submit(where.group, std::move(operation));
  } catch (...) {
    activity().end(kind);
    --table().under_way;
    throw;
  }
  set_handle(context, keep(pending));
}

AsyncOperationPtr take(int64_t handle) {
  AsyncOperationPtr pending = remove(handle);
  if (pending) return pending;
  throw UsageError(
      "no operation has handle " + std::to_string(handle) +
      ". Wait for each handle once, and keep the tensor that the start op returned until then.");
}

bool ends_within(int64_t handle, std::chrono::milliseconds timeout) {
  AsyncOperationPtr pending;
  {
    const std::lock_guard<std::mutex> lock(table().mutex);
    const auto found = table().open.find(handle);
    if (found == table().open.end()) return true;
    pending = found->second;
  }
  return pending->ends_within(timeout);
}

int64_t open_handles() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  return static_cast<int64_t>(table().open.size());
}

int64_t under_way() { return table().under_way; }

int64_t num_called() { return table().called; }

int64_t num_failed() { return table().failed; }

}  // namespace smdist::tensorflow_binding
