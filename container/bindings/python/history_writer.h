// SPDX-License-Identifier: Apache-2.0
// A thread that writes the history of this process's engine, and its stacks, to files.
#pragma once

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
// The stacks are written by another handler of the same signal, faulthandler's, to a file; it then
// calls the handler of this class. The thread raises the signal in itself before it writes for
// another reason, unless the script has replaced the handler.
//
// Thread safety: all methods may be called from any thread. At most one object per process.
class HistoryWriter final {
 public:
  // folder: for the files; made when it is first needed. stacks: descriptor of the file with
  // stacks. writes_failures: write when the engine fails. Throws SystemError.
  HistoryWriter(std::string folder, int stacks, bool writes_failures);
  ~HistoryWriter() { stop(); }
  HistoryWriter(const HistoryWriter&) = delete;
  HistoryWriter& operator=(const HistoryWriter&) = delete;

  // Write the history of this engine from now on; the object does not own it.
  void watch(const std::shared_ptr<Engine>& engine);
  // Install a handler of this signal that wakes the thread. Returns false, and installs none, if
  // the process has one already.
  bool install(int number);
  // Record that the present handler of the signal writes stacks.
  void trust_handler();
  // Finish the files that are being written, and end the thread. A second call does nothing.
  void stop();
  // Abandon the thread in a forked child, which does not have it, and restore the default of the
  // signal there.
  void close_in_child() noexcept;

  // Wake the thread because the engine has failed. Takes no lock.
  static void on_failure();

 private:
  static void handle_signal(int number);

  void run();
  bool take_events();
  bool is_requested();
  void write(const std::string& reason);
  bool has_own_handler() const;
  void raise_for_stacks() const;
  std::string take_stacks() const;
  void save(const std::string& name, const std::string& content) const;

  const std::string folder_;
  const int stacks_;
  const bool writes_failures_;
  int wake_[2] = {-1, -1};
  int64_t request_time_ = 0;  // last change of the request, in nanoseconds
  int signal_ = 0;
  void (*trusted_)(int) = nullptr;
  std::mutex mutex_;
  std::weak_ptr<Engine> engine_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace smdist::python
