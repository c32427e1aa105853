// SPDX-License-Identifier: Apache-2.0
// Conversion of faults to and from the wire format, and to errors.
#pragma once

#include <exception>
#include <string>

#include "messaging/frame.h"
#include "smdist/fault.h"

namespace smdist {

// Return the bytes of a fault for the wire, at most max_bytes. A sentence that is too long is
// truncated; details that are too long are left out.
std::string encode(const Fault& fault, size_t max_bytes = kMaxFaultBytes);

// Decode a fault. Throws PeerError; its text is the rest of a sentence that begins with the
// sender's name.
Fault decode_fault(const std::string& payload);

// Return the error of the class that belongs to the fault's kind.
std::exception_ptr error_of(const Fault& fault);

}  // namespace smdist
