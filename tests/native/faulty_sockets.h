// SPDX-License-Identifier: Apache-2.0
// Faults of this process's sockets, for tests and benchmarks of starts.
//
// The functions of the C library cannot be told to fail, so faulty_sockets.cc defines connect(),
// socket() and accept4() itself. Compiled into a program, or preloaded into it (LD_PRELOAD), they
// take the place of the library's. The variable SMDIST_FAULTY_SOCKETS sets how many connections out
// of 1000 fail. Only non-blocking sockets have faults, such as those of engines.
#pragma once

#include <cstdint>

namespace smdist::testing {

// Number of connections out of 1000 that get each fault.
struct ConnectionFaults {
  int refused = 0;  // no process listens at the address
  int reset = 0;    // reset at once, or just before a part of the handshake arrives
  int delayed = 0;  // established at once, but data arrive only after up to 0.4 s
};

// Let connections fail from now on.
void set_connection_faults(const ConnectionFaults& faults);
// Let the process have no more open files for sockets, or have them again.
void set_out_of_files(bool is_out);
// Return the number of connections that have had a fault so far.
uint64_t count_faulty_connections();

}  // namespace smdist::testing
