// SPDX-License-Identifier: Apache-2.0
#include "messaging/fault.h"

#include <algorithm>

#include "base/little_endian.h"
#include "messaging/frame.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kPrefixBytes = 9;  // kind, culprit, lengths of the operation and the details
constexpr size_t kMaxOperationBytes = 64;

}  // namespace

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kAborted:
      return "aborted";
    case FaultKind::kUsage:
      return "usage";
    case FaultKind::kPeer:
      return "peer";
    case FaultKind::kTimeout:
      return "timeout";
    case FaultKind::kSystem:
      return "system";
    case FaultKind::kLeft:
      return "left";
    case FaultKind::kLost:
      return "lost";
  }
  return "";
}

std::string encode(const Fault& fault, size_t max_bytes) {
  const std::string operation = fault.operation.substr(0, kMaxOperationBytes);
  const size_t max_details = std::min(kMaxDetailsBytes, max_bytes / 2);
  const bool fits = fault.details.size() <= max_details;
  const std::string& details = fits ? fault.details : std::string();
  uint8_t prefix[kPrefixBytes] = {static_cast<uint8_t>(fault.kind)};
  put<uint32_t>(prefix + 1, static_cast<uint32_t>(fault.culprit));
  put<uint16_t>(prefix + 5, static_cast<uint16_t>(operation.size()));
  put<uint16_t>(prefix + 7, static_cast<uint16_t>(details.size()));
  std::string payload(reinterpret_cast<const char*>(prefix), kPrefixBytes);
  payload.append(operation).append(details);
  return payload.append(fault.text, 0, max_bytes - payload.size());
}

Fault decode_fault(const std::string& payload) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  const bool is_known = payload.size() >= kPrefixBytes && bytes[0] < kFaultKinds;
  const size_t operation = is_known ? get<uint16_t>(bytes + 5) : 0;
  const size_t details = is_known ? get<uint16_t>(bytes + 7) : 0;
  if (!is_known || kPrefixBytes + operation + details > payload.size()) {
    throw PeerError(
        "aborted, but this rank cannot decode the reason; use the same version of the smdist "
        "runtime on all hosts");
  }
  Fault fault{static_cast<FaultKind>(bytes[0]), static_cast<int>(get<uint32_t>(bytes + 1)), {}};
  fault.operation = payload.substr(kPrefixBytes, operation);
  fault.details = payload.substr(kPrefixBytes + operation, details);
  fault.text = payload.substr(kPrefixBytes + operation + details);
  return fault;
}

std::exception_ptr error_of(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kAborted:
      return std::make_exception_ptr(Error(fault));
    case FaultKind::kUsage:
      return std::make_exception_ptr(UsageError(fault));
    case FaultKind::kPeer:
    case FaultKind::kLeft:
    case FaultKind::kLost:
      return std::make_exception_ptr(PeerError(fault));
    case FaultKind::kTimeout:
      return std::make_exception_ptr(TimeoutError(fault));
    case FaultKind::kSystem:
      return std::make_exception_ptr(SystemError(fault));
  }
  return nullptr;
}

}  // namespace smdist
