// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host_registration.h"

namespace smdist::torch_binding {

// Return CUDA's registration of host memory, from the driver that is loaded at run time; null if
// there is none, and then `missing` says why.
const HostRegistration* cuda_host_registration(std::string* missing);

}  // namespace smdist::torch_binding
