// SPDX-License-Identifier: Apache-2.0
#include "host_registration.h"

#include "by_device_type.h"
#include "cuda_host_registration.h"

namespace smdist::torch_binding {
namespace {

// Never destroyed: threads may use it until the process ends.
ByDeviceType<HostRegistration>& registered() {
  static auto* const of_process = new ByDeviceType<HostRegistration>;
  return *of_process;
}

}  // namespace

void register_host_registration(c10::DeviceType type, const HostRegistration* registration) {
  registered().put(type, registration);
}

const HostRegistration* find_host_registration(c10::DeviceType type, std::string* missing) {
  if (const HostRegistration* const found = registered().find(type)) return found;
  if (type == c10::DeviceType::CUDA) return cuda_host_registration(missing);
  *missing = "smdist cannot pin memory for devices of type " +
             c10::DeviceTypeName(type, /*lower_case=*/true);
  return nullptr;
}

}  // namespace smdist::torch_binding
