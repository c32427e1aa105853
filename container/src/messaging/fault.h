// SPDX-License-Identifier: Apache-2.0
// Why a job failed, in a form that travels to other ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace smdist {

// Which class of error a fault becomes. Part of the wire format.
enum class FaultKind : uint8_t { kAborted = 0, kUsage = 1, kPeer = 2, kTimeout = 3, kSystem = 4 };
constexpr uint8_t kFaultKinds = 5;

struct Fault {
  FaultKind kind = FaultKind::kAborted;
  int culprit = 0;   // engine rank
  std::string text;  // a sentence
};

std::string encode(const Fault& fault);

// Throws PeerError; its text completes a sentence that begins with the sender.
Fault decode_fault(const std::string& payload);

std::exception_ptr error_of(const Fault& fault);

}  // namespace smdist
