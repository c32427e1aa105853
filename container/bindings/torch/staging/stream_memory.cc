// SPDX-License-Identifier: Apache-2.0
#include "stream_memory.h"

#include "by_device_type.h"
#include "cuda_stream_memory.h"

namespace smdist::torch_binding {
namespace {

// Never destroyed: threads may use it until the process ends.
ByDeviceType<StreamMemory>& registered() {
  static auto* const of_process = new ByDeviceType<StreamMemory>;
  return *of_process;
}

}  // namespace

void register_stream_memory(c10::DeviceType type, const StreamMemory* memory) {
  registered().put(type, memory);
}

const StreamMemory* find_stream_memory(c10::DeviceType type, std::string* missing) {
  if (const StreamMemory* const found = registered().find(type)) return found;
  if (type == c10::DeviceType::CUDA) return cuda_stream_memory(missing);
  *missing = "smdist knows no stream memory operations of devices of type " +
             c10::DeviceTypeName(type, /*lower_case=*/true);
  return nullptr;
}

}  // namespace smdist::torch_binding
