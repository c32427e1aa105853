// SPDX-License-Identifier: Apache-2.0
// Limit of the open files of this process: each connection is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "smdist/options.h"

namespace smdist {

// Raise the limit of open files (RLIMIT_NOFILE) to the highest that this process may set.
void raise_open_files_limit();
// Return the present limit.
size_t open_files_limit();
// Return the number of open files; 0 if it cannot be read.
size_t count_open_files();
// Return whether this errno means that the process or the machine has no more open files.
bool is_out_of_files(int error_number);
// Return the sentence that tells users how to raise the limit.
std::string open_files_hint();

// Return how many lanes to each peer fit within `limit`, if `num_open` files are open already and
// some stay free for the rest of the process. At most options.max_lanes. Throws SystemError if not
// even one lane fits.
uint32_t lanes_within(const Options& options, size_t limit, size_t num_open);

}  // namespace smdist
