// SPDX-License-Identifier: Apache-2.0
// Every error the core raises on purpose. Messages are full sentences.
//
//   Error           an engine was aborted by its user, or shut down
//   ├── UsageError  the call is wrong, or ranks called different things -> mend the program
//   ├── PeerError   another rank died, left, or broke the protocol     -> restart the job
//   ├── TimeoutError  a rank did not contribute in time                -> look at the rank it names
//   └── SystemError   the operating system refused                     -> look at the host
#pragma once

#include <stdexcept>
#include <string>

namespace smdist {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UsageError final : public Error {
 public:
  using Error::Error;
};

class PeerError final : public Error {
 public:
  using Error::Error;
};

class TimeoutError final : public Error {
 public:
  using Error::Error;
};

class SystemError final : public Error {
 public:
  using Error::Error;
  // The sentence `what`, followed by what errno means.
  SystemError(const std::string& what, int error_number);
};

}  // namespace smdist
