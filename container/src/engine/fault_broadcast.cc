// SPDX-License-Identifier: Apache-2.0
#include "engine/fault_broadcast.h"

#include <utility>

namespace smdist {

std::exception_ptr FaultBroadcast::failure() const {
  MutexLock lock(failure_mutex_);
  return failure_;
}

void FaultBroadcast::set_last_error(const std::exception_ptr& error) {
  if (!error && !has_last_error_) return;  // the usual case needs no lock
  has_last_error_ = error != nullptr;
  MutexLock lock(failure_mutex_);
  last_error_ = error;
}

std::exception_ptr FaultBroadcast::last_error() const {
  MutexLock lock(failure_mutex_);
  return last_error_ ? last_error_ : failure_;
}

void FaultBroadcast::record(Fault fault) {
  fault_ = std::move(fault);
  error_ = error_of(fault_);
  MutexLock lock(failure_mutex_);
  failure_ = error_;
}

void FaultBroadcast::send_to(int rank) {
  Frame frame;
  frame.type = FrameType::kAbort;
  sender_.send(rank, frame, encode(fault_));
}

// Sends the fault to all connected peers, which forward it to theirs. The rank that detected it
// also connects to lower ranks. Higher ranks connect to this rank themselves, and receive the fault
// then.
void FaultBroadcast::send_to_all(bool is_found_here) {
  for (int rank = 0; rank < options_.size; ++rank) {
    const bool may_connect = is_found_here && rank < options_.rank && !detector_.is_lost(rank);
    const bool is_reachable = detector_.is_connected(rank) || may_connect;
    if (rank != options_.rank && is_reachable) send_to(rank);
  }
}

bool FaultBroadcast::has_uninformed_peers() const {
  if (!error_) return false;
  for (int rank = 0; rank < options_.size; ++rank) {
    const bool may_connect = !detector_.is_connected(rank) && !detector_.is_lost(rank);
    if (rank != options_.rank && may_connect) return true;
  }
  return false;
}

}  // namespace smdist
