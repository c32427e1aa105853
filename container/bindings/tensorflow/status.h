// SPDX-License-Identifier: Apache-2.0
// Conversion of the core's errors to TensorFlow's.
#pragma once

#include <tensorflow/c/kernels.h>

#include <stdexcept>
#include <string>

namespace smdist::tensorflow_binding {

// Error of an op that ran without an engine; TensorFlow reports FAILED_PRECONDITION.
class NoEngineError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An error that TensorFlow returned from a call of its C API.
class StatusError final : public std::runtime_error {
 public:
  StatusError(TF_Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  TF_Code code() const { return code_; }

 private:
  TF_Code code_;
};

// An owned TF_Status, which may serve several calls in turn.
//
// Thread safety: none.
class Status final {
 public:
  Status() : status_(TF_NewStatus()) {}
  ~Status() { TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  TF_Status* get() const { return status_; }
  // Throw StatusError if the status is not OK.
  void check() const;
  void set(TF_Code code, const std::string& text) { TF_SetStatus(status_, code, text.c_str()); }

 private:
  TF_Status* const status_;
};

// Set the status from the current exception. Call in a catch block.
void set_from_exception(Status& status);

// Run a kernel's body and convert an exception to a failure of the op.
template <typename Body>
void run_kernel(TF_OpKernelContext* context, const Body& body) noexcept {
  Status status;
  try {
    body();
    return;
  } catch (...) {
    set_from_exception(status);
  }
  TF_OpKernelContext_Failure(context, status.get());
}

}  // namespace smdist::tensorflow_binding
