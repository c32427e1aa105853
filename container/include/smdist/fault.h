// SPDX-License-Identifier: Apache-2.0
// Fault that ended an engine or a call, as data. It is sent to other ranks, and errors contain it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smdist {

// Class of a fault. The values are part of the wire format.
enum class FaultKind : uint8_t {
  kAborted = 0,  // a rank called abort()
  kUsage = 1,    // ranks called different operations under one number
  kPeer = 2,     // a rank broke the protocol
  kTimeout = 3,  // a rank did not take part in an operation within its timeout
  kSystem = 4,   // a call of the operating system failed
  kLeft = 5,     // a rank called shutdown() while operations of others still needed it
  kLost = 6,     // a rank's process ended, or cannot be reached
};
constexpr uint8_t kFaultKinds = 7;

// Return "aborted", "usage", "peer", "timeout", "system", "left" or "lost".
const char* name_of(FaultKind kind);

// Maximum size of Fault::details in bytes.
constexpr size_t kMaxDetailsBytes = 4096;

// Reason for which all operations of an engine fail or, if ranks disagree, those of one call.
struct Fault {
  FaultKind kind = FaultKind::kAborted;
  int culprit = 0;          // engine rank that caused the fault
  std::string text;         // a sentence for users; programs never parse it
  std::string operation{};  // such as "all_reduce"; empty: the fault concerns no operation
  std::string details{};    // argument of abort(); the engine does not interpret it
};

}  // namespace smdist
