// SPDX-License-Identifier: Apache-2.0
// Reason why an engine has ended, as data. Errors carry it, and it is sent to all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smdist {

// Class of a fault. The values are part of the wire format.
enum class FaultKind : uint8_t {
  kAborted = 0,  // a rank called abort()
  kUsage = 1,    // ranks called different things
  kPeer = 2,     // a rank broke the protocol
  kTimeout = 3,  // a rank did not contribute in time
  kSystem = 4,   // the operating system refused
  kLeft = 5,     // a rank shut its engine down in order while others still needed it
  kLost = 6,     // a rank's process ended, or cannot be reached
};
constexpr uint8_t kFaultKinds = 7;

// "aborted", "usage", "peer", "timeout", "system", "left" or "lost".
const char* name_of(FaultKind kind);

// Size of the longest details that can be sent.
constexpr size_t kMaxDetailsBytes = 4096;

struct Fault {
  FaultKind kind = FaultKind::kAborted;
  int culprit = 0;          // engine rank that the fault is about
  std::string text;         // a sentence for users; programs never parse it
  std::string operation{};  // such as "all_reduce"; empty: the fault is of no operation
  std::string details{};    // argument of abort(); the engine does not interpret it
};

}  // namespace smdist
