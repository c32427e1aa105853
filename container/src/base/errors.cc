// SPDX-License-Identifier: Apache-2.0
#include "smdist/errors.h"

#include <system_error>

namespace smdist {

SystemError::SystemError(const std::string& what, int error_number)
    : Error(what + ": " + std::generic_category().message(error_number)),
      error_number_(error_number) {}

}  // namespace smdist
