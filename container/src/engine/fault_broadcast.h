// SPDX-License-Identifier: Apache-2.0
// The fault that ended the engine, and its transmission to other ranks.
#pragma once

#include <exception>

#include "base/mutex.h"
#include "engine/failure_detector.h"
#include "engine/frame_sender.h"
#include "messaging/fault.h"

namespace smdist {

// Stores the first fault, and sends it to the other ranks in ABORT frames.
//
// Thread safety: none, except for failure(), which any thread may call.
class FaultBroadcast final {
 public:
  FaultBroadcast(const Options& options, FrameSender& sender, const FailureDetector& detector)
      : options_(options), sender_(sender), detector_(detector) {}

  // Return the error of all operations from now on; null while the engine works.
  const std::exception_ptr& error() const { return error_; }
  const Fault& fault() const { return fault_; }

  // Return the error if a fault has ended the engine; null if it works, or if close() was called.
  std::exception_ptr failure() const SMDIST_EXCLUDES(failure_mutex_);

  // Set the error of the operation that ended last; null if it succeeded.
  void set_last_error(const std::exception_ptr& error) SMDIST_EXCLUDES(failure_mutex_);
  // Return the error of the operation that ended last or, if the engine has failed since, that of
  // the engine.
  std::exception_ptr last_error() const SMDIST_EXCLUDES(failure_mutex_);

  // Store the fault. Requires: error() is null.
  void record(Fault fault) SMDIST_EXCLUDES(failure_mutex_);
  // Let later operations fail with `reason` after shutdown(); failure() stays null. Requires:
  // error() is null.
  void close(const Fault& reason) { error_ = error_of(reason); }

  // Send the fault to one rank.
  void send_to(int rank);
  // Send the fault to all ranks that can be reached. is_found_here: this rank detected the fault;
  // false if it was received from another rank.
  void send_to_all(bool is_found_here);
  // Return whether there is a fault, and a peer that has not connected yet and so has not received
  // it.
  bool has_uninformed_peers() const;

 private:
  const Options& options_;
  FrameSender& sender_;
  const FailureDetector& detector_;
  std::exception_ptr error_;
  Fault fault_;

  mutable Mutex failure_mutex_;
  std::exception_ptr failure_ SMDIST_GUARDED_BY(failure_mutex_);
  std::exception_ptr last_error_ SMDIST_GUARDED_BY(failure_mutex_);
  bool has_last_error_ = false;  // true if last_error_ is set; needs no lock
};

}  // namespace smdist
