// SPDX-License-Identifier: Apache-2.0
// Threads that wake up without preempting others.
#pragma once

#include <sched.h>

namespace smdist {

// If there are more ranks than processors, a rank is usually woken by a rank that is about to send
// more. Preempting the sender at its first chunk costs a switch back for the next one. While this
// object lives, its thread has the policy SCHED_BATCH: after a wake-up it runs when a processor is
// free. A thread whose policy is not the default, or cannot be changed, stays as it is.
class BatchScheduling final {
 public:
  explicit BatchScheduling(bool is_wanted)
      : is_on_(is_wanted && ::sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchScheduling() {
    if (is_on_) set(SCHED_OTHER);
  }
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  static bool set(int policy) {
    const sched_param none{};
    return ::sched_setscheduler(0, policy, &none) == 0;
  }

  const bool is_on_;
};

}  // namespace smdist
