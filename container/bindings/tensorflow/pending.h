// SPDX-License-Identifier: Apache-2.0
// Operations on their way, and the handles by which ops wait for them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "buffers.h"
#include "process.h"
#include "tensors.h"

namespace smdist::tensorflow_binding {

// Where one result lies in a buffer.
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

// Thread safety: all methods may be called from any thread.
class Pending final {
 public:
  explicit Pending(Results results) : results_(std::move(results)) {}

  const Results& results() const { return results_; }  // to be read after wait()

  void end(const std::exception_ptr& error);
  void wait();  // until end(); throws what ended it
  bool ends_within(std::chrono::milliseconds patience);

 private:
  [[noreturn]] void fail(const std::exception_ptr& error) const;

  const Results results_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false;    // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
};

using PendingPtr = std::shared_ptr<Pending>;

// Gives the operation to the engine, and the op its handle as output 0. `read` lives until the
// engine has done with it. The operation lacks its ends and its timeout. An operation whose
// handle TensorFlow drops before anybody waits for it goes on, and its results are dropped.
void submit(TF_OpKernelContext* context, const Current& with, Operation operation, Results results,
            std::vector<TensorPtr> read);

// The operation of a handle, once. Throws UsageError for a handle that was waited for.
PendingPtr take(int64_t handle);

// Waits for the operation of a handle, and leaves the handle; true also where there is none.
bool ends_within(int64_t handle, std::chrono::milliseconds patience);

int64_t open_handles();  // that nobody has waited for, and TensorFlow has not dropped
int64_t under_way();     // operations that have not ended

}  // namespace smdist::tensorflow_binding
