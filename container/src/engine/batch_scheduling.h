// SPDX-License-Identifier: Apache-2.0
// Threads that wake up without pushing others aside.
#pragma once

#include <sched.h>

namespace smdist {

// Where ranks outnumber processors, what wakes a rank is most often news from one that has more
// to say: pushed aside at the first piece, it is called back for the next. While this lives, the
// thread has Linux's policy for batches: woken, it runs when a processor is free. A thread with
// another policy than the default, or one that may not change it, stays as it is.
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
