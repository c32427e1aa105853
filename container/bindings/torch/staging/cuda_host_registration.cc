// SPDX-License-Identifier: Apache-2.0
#include "cuda_host_registration.h"

#include <c10/core/DeviceGuard.h>

#include "cuda_driver.h"

namespace smdist::torch_binding {
namespace {

// Types and values of the driver's interface since CUDA 6.5, for which no header is needed.
using Register = int (*)(void* memory, size_t bytes, unsigned flags);
using Unregister = int (*)(void* memory);
constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: for all contexts

struct RegistrationFunctions {
  Register pin = nullptr;
  Unregister unpin = nullptr;
  std::string missing;  // why the functions cannot be used; empty if they can
};

RegistrationFunctions registration_functions() {
  RegistrationFunctions driver;
  look_up("cuMemHostRegister_v2", &driver.pin, &driver.missing);
  look_up("cuMemHostUnregister", &driver.unpin, &driver.missing);
  return driver;
}

// The guard makes the context of the device current, as the driver requires.
class CudaHostRegistration final : public HostRegistration {
 public:
  explicit CudaHostRegistration(const RegistrationFunctions& driver) : driver_(driver) {}

  void pin(c10::Device device, void* memory, size_t bytes) const override {
    const c10::DeviceGuard guard(device);
    check_cuda(driver_.pin(memory, bytes, kPortable), "cuMemHostRegister");
  }

  // An error says that the driver ends, or that the device has failed: then nothing is left to do.
  void unpin(c10::Device device, void* memory) const noexcept override {
    try {
      const c10::DeviceGuard guard(device);
      driver_.unpin(memory);
    } catch (const c10::Error&) {
    }
  }

 private:
  const RegistrationFunctions& driver_;
};

}  // namespace

const HostRegistration* cuda_host_registration(std::string* missing) {
  static const auto* const driver = new RegistrationFunctions(registration_functions());
  static const auto* const registration = new CudaHostRegistration(*driver);
  *missing = driver->missing;
  return missing->empty() ? registration : nullptr;
}

}  // namespace smdist::torch_binding
