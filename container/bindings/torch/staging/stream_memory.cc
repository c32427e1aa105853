// SPDX-License-Identifier: Apache-2.0
#include "stream_memory.h"

#include <map>
#include <mutex>

#include "cuda_stream_memory.h"

namespace smdist::torch_binding {
namespace {

struct Registered {
  std::mutex mutex;
  std::map<c10::DeviceType, const StreamMemory*> memories;  // guarded by mutex
};

// Never destroyed: threads may use it until the process ends.
Registered& registered() {
  static auto* const of_process = new Registered;
  return *of_process;
}

}  // namespace

void register_stream_memory(c10::DeviceType type, const StreamMemory* memory) {
  const std::lock_guard<std::mutex> lock(registered().mutex);
  registered().memories[type] = memory;
}

const StreamMemory* find_stream_memory(c10::DeviceType type, std::string* missing) {
  {
    const std::lock_guard<std::mutex> lock(registered().mutex);
    const auto found = registered().memories.find(type);
    if (found != registered().memories.end()) return found->second;
  }
  if (type == c10::DeviceType::CUDA) return cuda_stream_memory(missing);
  *missing = "smdist knows no stream memory operations of devices of type " +
             c10::DeviceTypeName(type, /*lower_case=*/true);
  return nullptr;
}

}  // namespace smdist::torch_binding
