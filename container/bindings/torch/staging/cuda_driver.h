// SPDX-License-Identifier: Apache-2.0
// Functions of CUDA's driver, which is loaded at run time: one binary serves builds of torch with
// and without CUDA.
#pragma once

#include <string>

namespace smdist::torch_binding {

constexpr const char* kCudaDriver = "libcuda.so.1";
constexpr int kCudaSuccess = 0;

// Return the address of a function of the driver, or null if there is none; then `missing` says
// why, unless it says something already.
void* cuda_driver_function(const char* name, std::string* missing);

template <typename Function>
void look_up(const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(cuda_driver_function(name, missing));
}

// Throw c10::Error if a function of the driver has returned an error.
void check_cuda(int result, const char* name);

}  // namespace smdist::torch_binding
