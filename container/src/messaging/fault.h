// SPDX-License-Identifier: Apache-2.0
// Conversion of faults to and from the wire format, and to errors.
#pragma once

#include <exception>
#include <string>

#include "smdist/fault.h"

namespace smdist {

// Return the bytes of a fault for the wire. A sentence that is too long is truncated.
std::string encode(const Fault& fault);

// Decode a fault. Throws PeerError; its text is the rest of a sentence that begins with the
// sender's name.
Fault decode_fault(const std::string& payload);

// Return the error of the class that belongs to the fault's kind.
std::exception_ptr error_of(const Fault& fault);

}  // namespace smdist
