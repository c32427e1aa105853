// SPDX-License-Identifier: Apache-2.0
// The fault that ended the engine, and who has to learn of it.
#pragma once

#include <exception>

#include "base/mutex.h"
#include "engine/failure_detector.h"
#include "engine/frame_sender.h"
#include "messaging/fault.h"

namespace smdist {

// Keeps the first fault, and sends it to the other ranks by ABORT frames.
//
// Thread safety: none, but for failure(), which any thread may call.
class FaultBroadcast final {
 public:
  FaultBroadcast(const Options& options, FrameSender& sender, const FailureDetector& detector)
      : options_(options), sender_(sender), detector_(detector) {}

  // The error of every operation from now on; null while the engine works.
  const std::exception_ptr& error() const { return error_; }
  const Fault& fault() const { return fault_; }

  // The error if a fault ended the engine, null if nothing or close() did.
  std::exception_ptr failure() const SMDIST_EXCLUDES(failure_mutex_);

  // Keep the fault. Requires: error() is null, as for close().
  void record(Fault fault) SMDIST_EXCLUDES(failure_mutex_);
  // This rank ends in order: later operations fail, but there is no fault.
  void close(const Fault& reason) { error_ = error_of(reason); }

  void send_to(int rank);
  // is_found_here: the fault was not received from another rank.
  void send_to_all(bool is_found_here);
  // Return whether there are peers that may yet connect and learn of the fault.
  bool has_uninformed_peers() const;

 private:
  const Options& options_;
  FrameSender& sender_;
  const FailureDetector& detector_;
  std::exception_ptr error_;
  Fault fault_;

  mutable Mutex failure_mutex_;
  std::exception_ptr failure_ SMDIST_GUARDED_BY(failure_mutex_);
};

}  // namespace smdist
