// SPDX-License-Identifier: Apache-2.0
// Random bytes for cryptographic use.
#pragma once

#include <cstddef>

namespace smdist {

// Fill memory with random bytes from the kernel. Throws SystemError.
void fill_with_random(void* data, size_t bytes);

}  // namespace smdist
