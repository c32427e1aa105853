// SPDX-License-Identifier: Apache-2.0
// Words of pinned memory for which streams of a device wait.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <deque>
#include <mutex>

#include "stream_memory.h"

namespace smdist::torch_binding {

// A word, and the value that it has when something is complete. A word serves one signal after the
// other with increasing values, so a wait for an earlier signal ends at once.
struct StreamSignal {
  std::atomic<uint32_t>* word;
  uint32_t value;

  bool is_set() const { return static_cast<int32_t>(word->load() - value) >= 0; }
  // Set the signal from the host.
  void set() const { word->store(value); }
};

// Signals of one device. Their memory is never freed, because a stream may wait for a signal after
// everything else has ended.
//
// Thread safety: all methods may be called from any thread.
class StreamSignals final {
 public:
  StreamSignals(c10::Device device, const StreamMemory& memory)
      : device_(device), memory_(memory) {}

  // Return a signal that is not set. Throws an error if no memory can be pinned.
  StreamSignal take();
  // Give a signal back. Requires: it is set, and no stream will set it.
  void give_back(const StreamSignal& signal);

  // Let a stream wait for a signal, or set it behind its work.
  void wait(const c10::Stream& stream, const StreamSignal& signal) const {
    memory_.wait(stream, *signal.word, signal.value);
  }
  void set_behind(const c10::Stream& stream, const StreamSignal& signal) const {
    memory_.write(stream, *signal.word, signal.value);
  }

 private:
  void add_words();

  const c10::Device device_;
  const StreamMemory& memory_;
  std::mutex mutex_;
  std::deque<StreamSignal> free_;  // guarded by mutex_; all of them are set
};

// Return the signals of a device, or null if streams of the device cannot wait for signals; then
// `missing` says why.
StreamSignals* find_signals(c10::Device device, std::string* missing);

}  // namespace smdist::torch_binding
