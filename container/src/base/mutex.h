// SPDX-License-Identifier: Apache-2.0
// Mutex and lock guard with annotations for Clang's thread safety analysis.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace smdist {

// Mutex with annotations for the analysis.
class SMDIST_CAPABILITY("mutex") Mutex final {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() SMDIST_ACQUIRE() { mutex_.lock(); }
  void unlock() SMDIST_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Lock guard: holds the mutex from construction to destruction.
class SMDIST_SCOPED_CAPABILITY MutexLock final {
 public:
  explicit MutexLock(Mutex& mutex) SMDIST_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() SMDIST_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace smdist
