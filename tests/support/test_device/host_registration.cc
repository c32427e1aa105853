// SPDX-License-Identifier: Apache-2.0
// Registration of host memory with the device, for smdist: the memory then counts as pinned.
#include "staging/host_registration.h"

#include <torch/library.h>

#include "pinned_allocator.h"

namespace test_device {
namespace {

class TestHostRegistration final : public smdist::torch_binding::HostRegistration {
 public:
  void pin(c10::Device, void* memory, size_t bytes) const override {
    pinned_allocator().add_registered(memory, bytes);
  }

  void unpin(c10::Device, void* memory) const noexcept override {
    pinned_allocator().remove_registered(memory);
  }
};

int64_t host_registration() {
  static const auto* const registration = new TestHostRegistration;
  return reinterpret_cast<int64_t>(registration);
}

int64_t registered_bytes() { return static_cast<int64_t>(pinned_allocator().registered_bytes()); }

TORCH_LIBRARY_FRAGMENT(testdev, library) {
  library.def("host_registration() -> int", host_registration);
  library.def("registered_bytes() -> int", registered_bytes);
}

}  // namespace
}  // namespace test_device
