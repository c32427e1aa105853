// SPDX-License-Identifier: Apache-2.0
// Bytes nobody can guess.
#pragma once

#include <cstddef>

namespace smdist {

// From the kernel's generator. Throws SystemError.
void fill_with_random(void* data, size_t bytes);

}  // namespace smdist
