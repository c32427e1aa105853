// SPDX-License-Identifier: Apache-2.0
// A thread that writes the history of this process's engine, and its stacks, to files.
#pragma once

#include <atomic>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "smdist/engine.h"

namespace smdist::python {

// Writes operations-rank-N.json and stacks-rank-N.txt on request: after a signal, after a change of
// the file FOLDER.request, and after a failure of the engine. The thread takes no lock of Python,
// so it writes also while the process is stuck in compiled code.
//
// The stacks come from a thread of Python, which holds the GIL while it writes them to a file: a
// thread that runs meanwhile would change its own stack, and the walk over it would crash. The
// thread of Python answers each request within milliseconds, unless compiled code keeps the GIL.
// Then a copy of the process calls faulthandler's handler of the same signal, which needs no GIL:
// the copy may crash, the process does not. There are no stacks if the script has replaced the
// handler.
//
// Thread safety: all methods may be called from any thread. At most one object per process.
class HistoryWriter final {
 public:
  // folder: for the files; made when it is first needed. stacks: descriptor of the file with
  // stacks. requests: descriptor of a socket; each byte sent there requests the stacks, and comes
  // back when they are in the file. writes_failures: write when the engine fails. Throws
  // SystemError.
  HistoryWriter(std::string folder, int stacks, int requests, bool writes_failures);
  ~HistoryWriter() { stop(); }
  HistoryWriter(const HistoryWriter&) = delete;
  HistoryWriter& operator=(const HistoryWriter&) = delete;

  // Write the history of this engine from now on; the object does not own it.
  void watch(const std::shared_ptr<Engine>& engine);
  // Install a handler of this signal that wakes the thread. Returns false, and installs none, if
  // the process has one already.
  bool install(int number);
  // Replace the present handler of the signal, which writes stacks and does not need the GIL. A
  // copy of this process calls it if they cannot be had otherwise.
  void replace_handler();
  // Finish the files that are being written, and end the thread. A second call does nothing.
  void stop();
  // Abandon the thread in a forked child, which does not have it, and restore the default of the
  // signal there.
  void close_in_child() noexcept;

  // Wake the thread because the engine has failed. Takes no lock.
  static void on_failure();

 private:
  static void handle_signal(int number);
  static bool set_handler(int number, struct sigaction* replaced);

  void run();
  bool take_events();
  bool is_requested();
  void write(const std::string& reason);
  bool has_own_handler() const;
  void collect_stacks();
  bool request_stacks();
  void write_stacks_in_copy() const;
  std::string take_stacks() const;
  void save(const std::string& name, const std::string& content) const;

  const std::string folder_;
  const int stacks_;
  const int requests_;
  const bool writes_failures_;
  int wake_[2] = {-1, -1};
  int64_t request_time_ = 0;  // last change of the request, in nanoseconds
  uint8_t last_request_ = 0;  // byte that requested stacks
  int signal_ = 0;
  std::atomic<void (*)(int)> stacks_handler_{nullptr};  // null: none
  std::mutex mutex_;
  std::weak_ptr<Engine> engine_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace smdist::python
