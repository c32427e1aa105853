// SPDX-License-Identifier: Apache-2.0
// Queue between the threads of a two-level group.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace smdist::torch_binding {

// First in, first out. Once closed, it takes nothing more and gives what it has.
//
// Thread safety: all methods may be called from any thread.
template <typename T>
class OperationQueue final {
 public:
  // Add an element. Returns false if the queue is closed.
  bool push(T element) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_closed_) return false;
      elements_.push_back(std::move(element));
    }
    changed_.notify_all();
    return true;
  }

  // Wait for an element, and return it; nothing once the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_closed_ || !elements_.empty(); });
    return take();
  }

  // Return nothing also after this time.
  std::optional<T> pop_within(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, time, [this] { return is_closed_ || !elements_.empty(); });
    return take();
  }

  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
  }

  bool is_finished() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_closed_ && elements_.empty();
  }

 private:
  std::optional<T> take() {
    if (elements_.empty()) return std::nullopt;
    std::optional<T> first(std::move(elements_.front()));
    elements_.pop_front();
    return first;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> elements_;  // guarded by mutex_, as is the next one
  bool is_closed_ = false;
};

}  // namespace smdist::torch_binding
