// SPDX-License-Identifier: Apache-2.0
// Stream memory operations of the device, for smdist: streams wait for words and write them.
#include "staging/stream_memory.h"

#include <torch/library.h>

#include "scheduler.h"

namespace test_device {
namespace {

class TestStreamMemory final : public smdist::torch_binding::StreamMemory {
 public:
  void wait(const c10::Stream& stream, std::atomic<uint32_t>& word, uint32_t value) const override {
    Scheduler::get().wait_for_word(stream, &word, value);
  }

  void write(const c10::Stream& stream, std::atomic<uint32_t>& word,
             uint32_t value) const override {
    Scheduler::get().submit(stream, {"write_word", [&word, value] { word.store(value); }});
  }
};

int64_t stream_memory() {
  static const auto* const memory = new TestStreamMemory;
  return reinterpret_cast<int64_t>(memory);
}

TORCH_LIBRARY_FRAGMENT(testdev, library) { library.def("stream_memory() -> int", stream_memory); }

}  // namespace
}  // namespace test_device
