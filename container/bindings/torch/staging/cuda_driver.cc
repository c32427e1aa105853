// SPDX-License-Identifier: Apache-2.0
#include "cuda_driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace smdist::torch_binding {

void* cuda_driver_function(const char* name, std::string* missing) {
  static void* const library = dlopen(kCudaDriver, RTLD_NOW);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function == nullptr && missing->empty()) {
    *missing = library == nullptr ? std::string(kCudaDriver) + " cannot be loaded"
                                  : std::string(kCudaDriver) + " has no function " + name;
  }
  return function;
}

void check_cuda(int result, const char* name) {
  TORCH_CHECK(result == kCudaSuccess, "CUDA's driver returned error ", result, " from ", name);
}

}  // namespace smdist::torch_binding
