// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: a stream of a device waits for a word of host memory, or writes it.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace smdist::torch_binding {

// Stream memory operations of one type of device. c10 has none, so each type of device registers
// its own.
//
// Thread safety: const methods may be called from any thread.
class StreamMemory {
 public:
  virtual ~StreamMemory() = default;

  // Queue a wait on a stream until the word is `value` or later: the comparison is cyclic. word: in
  // pinned memory. Throws c10::Error if the device refuses it.
  virtual void wait(const c10::Stream& stream, std::atomic<uint32_t>& word,
                    uint32_t value) const = 0;

  // Queue the write of a value. Work that was queued earlier on the stream is complete, and its
  // results are visible everywhere, before the value is.
  virtual void write(const c10::Stream& stream, std::atomic<uint32_t>& word,
                     uint32_t value) const = 0;
};

// Register the operations of a type of device, which may not be destroyed.
void register_stream_memory(c10::DeviceType type, const StreamMemory* memory);

// Return the operations of a type of device, or null if it has none; then `missing` says why.
const StreamMemory* find_stream_memory(c10::DeviceType type, std::string* missing);

}  // namespace smdist::torch_binding
