// SPDX-License-Identifier: Apache-2.0
// Faults of a share of this process's TCP connections, for tests and benchmarks of starts.
//
// The functions connect() and close() of the C library cannot be told to fail, so faulty_connect.cc
// defines connect() itself. Compiled into a program, or preloaded into it (LD_PRELOAD, with the
// share in the variable SMDIST_FAULTY_CONNECT), it takes the place of the library's.
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
// Return the number of connections that have had a fault so far.
uint64_t count_faulty_connections();

}  // namespace smdist::testing
