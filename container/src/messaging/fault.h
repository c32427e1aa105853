// SPDX-License-Identifier: Apache-2.0
// Cause of a job's failure, in a form that can be sent to other ranks.
#pragma once

#include <exception>
#include <string>

#include "smdist/fault.h"

namespace smdist {

// A name that is too long to be sent is cut; so is the sentence.
std::string encode(const Fault& fault);

// Throws PeerError with a predicate as text; the caller puts the sender's name before it.
Fault decode_fault(const std::string& payload);

std::exception_ptr error_of(const Fault& fault);

}  // namespace smdist
