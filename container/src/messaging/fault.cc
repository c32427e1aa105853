// SPDX-License-Identifier: Apache-2.0
#include "messaging/fault.h"

#include <algorithm>

#include "base/little_endian.h"
#include "messaging/frame.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kPrefixBytes = 5;  // kind, culprit

}  // namespace

std::string encode(const Fault& fault) {
  uint8_t prefix[kPrefixBytes] = {static_cast<uint8_t>(fault.kind)};
  put<uint32_t>(prefix + 1, static_cast<uint32_t>(fault.culprit));
  std::string payload(reinterpret_cast<const char*>(prefix), kPrefixBytes);
  return payload.append(fault.text, 0, kMaxFaultBytes - kPrefixBytes);
}

Fault decode_fault(const std::string& payload) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  const bool is_known = payload.size() >= kPrefixBytes && bytes[0] < kFaultKinds;
  if (!is_known) throw PeerError("aborted for a reason that this version does not know");
  return {static_cast<FaultKind>(bytes[0]), static_cast<int>(get<uint32_t>(bytes + 1)),
          payload.substr(kPrefixBytes)};
}

std::exception_ptr error_of(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kAborted:
      return std::make_exception_ptr(Error(fault.text));
    case FaultKind::kUsage:
      return std::make_exception_ptr(UsageError(fault.text));
    case FaultKind::kPeer:
      return std::make_exception_ptr(PeerError(fault.text));
    case FaultKind::kTimeout:
      return std::make_exception_ptr(TimeoutError(fault.text));
    case FaultKind::kSystem:
      return std::make_exception_ptr(SystemError(fault.text));
  }
  return nullptr;
}

}  // namespace smdist
