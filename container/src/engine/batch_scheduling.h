// SPDX-License-Identifier: Apache-2.0
// Scheduling policy for threads that should not preempt others when they wake up.
#pragma once

#include <sched.h>

namespace smdist {

// Gives its thread the policy SCHED_BATCH while the object exists: after a wake-up the thread runs
// when a processor is free. If there are more ranks than processors, a rank is usually woken by a
// rank that is about to send more data; preempting that sender would cost two context switches for
// each chunk. Does nothing if the policy of the thread is not the default one, or cannot be
// changed.
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
