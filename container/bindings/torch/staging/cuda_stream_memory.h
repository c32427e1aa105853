// SPDX-License-Identifier: Apache-2.0
// Stream memory operations of CUDA's driver, which is loaded at run time.
#pragma once

#include "stream_memory.h"

namespace smdist::torch_binding {

// Return the operations of CUDA's driver, or null if the driver has none; then `missing` says why.
// The driver is looked up in the first call.
const StreamMemory* cuda_stream_memory(std::string* missing);

}  // namespace smdist::torch_binding
