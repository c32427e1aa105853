// SPDX-License-Identifier: Apache-2.0
// The errors that the core raises on purpose. Messages are full sentences.
//
//   Error           an engine was aborted by its user, or shut down
//   ├── UsageError  the call is wrong, or ranks called different things -> fix the program
//   ├── PeerError   another rank died, left, or broke the protocol     -> restart the job
//   ├── TimeoutError  a rank did not contribute in time                -> look at the rank it names
//   └── SystemError   the operating system refused                     -> look at the host
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "smdist/fault.h"

namespace smdist {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  explicit Error(const Fault& fault)
      : std::runtime_error(fault.text), fault_(std::make_shared<const Fault>(fault)) {}

  // The fault that ended the engine; null for an error of one call alone.
  const Fault* fault() const { return fault_.get(); }

 private:
  std::shared_ptr<const Fault> fault_;
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
  // Message: the sentence `what`, followed by the meaning of error_number (an errno).
  SystemError(const std::string& what, int error_number);
};

}  // namespace smdist
