// SPDX-License-Identifier: Apache-2.0
// Asynchronous operations, and the handles by which wait ops find them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "process_engine.h"
#include "tensor_buffers.h"
#include "tensors.h"

namespace smdist::tensorflow_binding {

// Location of one result in a buffer.
struct Part {
  Shape shape;
  size_t offset;
  size_t bytes;
};

struct Results {
  TF_DataType type;
  std::vector<Part> parts;
  BufferPtr buffer;
};

// An operation that the engine runs, and its results.
//
// Thread safety: all methods may be called from any thread.
class AsyncOperation final {
 public:
  explicit AsyncOperation(Results results) : results_(std::move(results)) {}

  const Results& results() const { return results_; }  // contents are valid after wait()

  void end(const std::exception_ptr& error);
  void wait();  // until end(); throws its error
  bool ends_within(std::chrono::milliseconds timeout);

 private:
  [[noreturn]] void fail(const std::exception_ptr& error) const;

  const Results results_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false;    // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
};

using AsyncOperationPtr = std::shared_ptr<AsyncOperation>;

// Submits the operation to the engine and sets its handle as output 0 of the op. `read` is kept
// alive until the engine has finished with it. Sets the callbacks and the timeout of the
// operation. If TensorFlow drops the handle before a wait op uses it, the operation continues and
// its results are discarded.
void submit(TF_OpKernelContext* context, const EngineContext& current, Operation operation,
            Results results, std::vector<TensorPtr> read);

// Returns the operation of a handle and forgets the handle. Throws UsageError if it was used
// before.
AsyncOperationPtr take(int64_t handle);

// Waits for the operation of a handle, which stays valid. Returns whether it has ended; true if
// there is no such handle.
bool ends_within(int64_t handle, std::chrono::milliseconds timeout);

int64_t open_handles();  // number of handles not yet used or dropped
int64_t under_way();     // number of operations in flight

}  // namespace smdist::tensorflow_binding
