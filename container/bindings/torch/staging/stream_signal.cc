// SPDX-License-Identifier: Apache-2.0
#include "stream_signal.h"

#include <map>
#include <memory>

#include "pinned_slots.h"

namespace smdist::torch_binding {
namespace {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kSpacingBytes = 64;  // a cache line for each word

struct Known {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<StreamSignals>>
      signals;  // guarded by mutex
};

// Never destroyed, like the memory of the signals.
Known& known() {
  static auto* const of_process = new Known;
  return *of_process;
}

}  // namespace

// Adds the words of one block of pinned memory, which is never freed. Requires: mutex_ is held.
void StreamSignals::add_words() {
  const auto* const block = new at::Tensor(allocate_pinned(device_.type(), kBlockBytes));
  auto* const begin = static_cast<char*>(block->data_ptr());
  for (size_t offset = 0; offset < kBlockBytes; offset += kSpacingBytes) {
    free_.push_back({new (begin + offset) std::atomic<uint32_t>(0), 0});
  }
}

StreamSignal StreamSignals::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) add_words();
  const StreamSignal last = free_.front();
  free_.pop_front();
  return {last.word, last.value + 1};
}

void StreamSignals::give_back(const StreamSignal& signal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(signal);
}

StreamSignals* find_signals(c10::Device device, std::string* missing) {
  const StreamMemory* const memory = find_stream_memory(device.type(), missing);
  if (memory == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(known().mutex);
  std::unique_ptr<StreamSignals>& found = known().signals[{device.type(), device.index()}];
  if (!found) found = std::make_unique<StreamSignals>(device, *memory);
  return found.get();
}

}  // namespace smdist::torch_binding
