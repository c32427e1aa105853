// SPDX-License-Identifier: Apache-2.0
// Asynchronous operations, and the handles by which wait ops find them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
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

// Results of an operation: their dtype, their locations, and the buffer that contains them.
struct Results {
  TF_DataType type;
  std::vector<Part> parts;
  BufferPtr buffer;
};

// Group and name under which an operation is submitted.
struct SubmissionAttributes {
  uint32_t group = 0;  // number of a group that was added to the engine; 0 has all ranks
  // Name by which ranks match the operation (name_order.h); empty: by the order of submission.
  std::string key;
  std::string label;  // the call of the script that it is a part of, for errors; may be empty
};

// An operation that the engine runs, and its results.
//
// Thread safety: all methods may be called from any thread.
class AsyncOperation final {
 public:
  // label: the call of the script for errors; empty: they have only the results.
  AsyncOperation(Results results, Collective kind, std::string label)
      : results_(std::move(results)), kind_(kind), label_(std::move(label)) {}

  const Results& results() const { return results_; }  // contents are valid after wait()

  // Record that the operation has ended. error: null if it succeeded.
  void end(const std::exception_ptr& error);
  // Block until end() is called. Throws its error.
  void wait();
  // Block until end() is called or the timeout expires. Returns whether the operation has ended.
  bool ends_within(std::chrono::milliseconds timeout);
  // Call `next` after finish(), on its thread; at once if finish() has been called. At most one
  // call.
  void then(std::function<void()> next);
  // Call the function of then(), after end().
  void finish();

 private:
  [[noreturn]] void fail(const std::exception_ptr& error) const;
  std::string own_call() const;  // The call of this rank, as the rest of a sentence.

  const Results results_;
  const Collective kind_;
  const std::string label_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false;      // guarded by mutex_
  bool has_finished_ = false;   // guarded by mutex_
  std::exception_ptr error_;    // guarded by mutex_
  std::function<void()> next_;  // guarded by mutex_
};

using AsyncOperationPtr = std::shared_ptr<AsyncOperation>;

// Submit the operation to a group of the engine and set its handle as output 0 of the op. Sets the
// callbacks and the timeout of the operation. read: tensors that are kept alive until the operation
// has ended. If TensorFlow frees the handle before a wait op uses it, the operation continues and
// its results are discarded.
void submit(TF_OpKernelContext* context, const EngineContext& current, Operation operation,
            Results results, std::vector<TensorPtr> read, const SubmissionAttributes& where = {});

// Return the operation of a handle and remove the handle. Throws UsageError if there is no such
// handle, for example because it was used before.
AsyncOperationPtr take(int64_t handle);

// Block until the operation of a handle has ended or the timeout expires. Returns whether it has
// ended; true if there is no such handle. The handle stays valid.
bool ends_within(int64_t handle, std::chrono::milliseconds timeout);

int64_t open_handles();  // number of handles not yet used or dropped
int64_t under_way();     // number of operations in flight
int64_t num_called();    // number of collectives that were submitted, whether or not they succeeded
int64_t num_failed();    // number of operations that have failed

}  // namespace smdist::tensorflow_binding
