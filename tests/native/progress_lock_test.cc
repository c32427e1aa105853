// SPDX-License-Identifier: Apache-2.0
// Tests that no work is lost: the progress thread does the work that a holder of the lock has not
// done.
#include "engine/progress_lock.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "transport/memory_transport.h"

namespace smdist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kSoon{20};  // on a busy machine; forgotten work takes a minute

// A transport without a network, which waits until its timeout or a wake-up.
class Silence final {
 public:
  Silence() : hub_(std::make_shared<MemoryHub>(1)), transport_(hub_->transport(0)) {}
  Transport& operator*() { return *transport_; }

 private:
  std::shared_ptr<MemoryHub> hub_;
  std::unique_ptr<Transport> transport_;
};

// A progress thread that only counts how often it acquires the lock.
class ProgressThread final {
 public:
  explicit ProgressThread(ProgressLock& progress, Transport& transport)
      : thread_([&] { loop(progress, transport); }) {}
  ~ProgressThread() { thread_.join(); }
  void await_turn_after(int before) const {
    const Clock::time_point begin = Clock::now();
    while (num_turns_ <= before) {
      CHECK(Clock::now() - begin < kSoon);
      std::this_thread::yield();
    }
  }
  int num_turns() const { return num_turns_; }
  void end() { is_ended_ = true; }

 private:
  void loop(ProgressLock& progress, Transport& transport) {
    SpinPolicy spin;
    while (!is_ended_) {
      progress.acquire_when_due();
      progress.ack_wakeup();
      ++num_turns_;
      progress.release_to_await();
      transport.await(seconds(60), spin);
    }
  }

  std::atomic<int> num_turns_ = 0;
  std::atomic<bool> is_ended_ = false;
  std::thread thread_;
};

// The progress thread sleeps in the transport at first, and later at rest.
void a_release_with_work_left_wakes_the_progress_thread() {
  Silence silence;
  ProgressLock progress(*silence);
  progress.open();
  ProgressThread thread(progress, *silence);
  for (int i = 0; i < 200; ++i) {
    thread.await_turn_after(0);
    if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(1));
    if (!progress.try_acquire()) continue;
    if (i % 2 == 0) progress.notify();  // work that the holder leaves for itself counts, too
    const int before = thread.num_turns();
    progress.release(i % 2 == 0);
    thread.await_turn_after(before);
  }
  thread.end();
  progress.notify();
}

void work_that_comes_while_the_lock_is_held_is_done() {
  Silence silence;
  ProgressLock progress(*silence);
  progress.open();
  ProgressThread thread(progress, *silence);
  for (int i = 0; i < 200; ++i) {
    thread.await_turn_after(0);
    if (!progress.try_acquire()) continue;
    const int before = thread.num_turns();
    std::thread leaving([&progress] { progress.notify(); });
    if (i % 2 == 0) leaving.join();  // before the release; in the other rounds at any time
    progress.release(true);
    thread.await_turn_after(before);
    if (leaving.joinable()) leaving.join();
  }
  thread.end();
  progress.notify();
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_release_with_work_left_wakes_the_progress_thread);
  RUN(work_that_comes_while_the_lock_is_held_is_done);
}
