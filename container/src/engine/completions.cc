// SPDX-License-Identifier: Apache-2.0
#include "engine/completions.h"

#include <utility>

namespace smdist {

void Completions::start() {
  thread_ = std::thread([this] { run(); });
}

void Completions::push(Done done, std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    queue_.push_back({std::move(done), std::move(error)});
  }
  changed_.notify_one();
}

void Completions::finish() {
  {
    MutexLock lock(mutex_);
    is_finished_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Completions::run() {
  while (true) {
    std::deque<Completion> batch;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !is_finished_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    while (!batch.empty()) {
      batch.front().done(batch.front().error);
      batch.pop_front();
    }
  }
}

}  // namespace smdist
