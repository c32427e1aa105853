// SPDX-License-Identifier: Apache-2.0
// Errors that the core throws. Messages are sentences for users.
//
//   Error           an engine was aborted by its user, or shut down
//   ├── UsageError  the call is wrong, or ranks called different operations -> correct the program
//   ├── PeerError   another rank died, left, or broke the protocol     -> restart the job
//   ├── TimeoutError  a rank did not contribute in time                -> look at the rank it names
//   └── SystemError   the operating system refused                     -> look at the host
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "smdist/fault.h"

namespace smdist {

// Base class of all errors of the core.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  explicit Error(const Fault& fault)
      : std::runtime_error(fault.text), fault_(std::make_shared<const Fault>(fault)) {}

  // Return the fault that ended the engine, or this call; null if the call has never started.
  const Fault* fault() const { return fault_.get(); }

 private:
  std::shared_ptr<const Fault> fault_;
};

// The call is wrong, or ranks called different operations.
class UsageError final : public Error {
 public:
  using Error::Error;
};

// Another rank died, left, or broke the protocol.
class PeerError final : public Error {
 public:
  using Error::Error;
};

// A rank did not take part in an operation within its timeout.
class TimeoutError final : public Error {
 public:
  using Error::Error;
};

// A call of the operating system failed.
class SystemError final : public Error {
 public:
  using Error::Error;
  // Makes an error with the message "<what>: <meaning of error_number>"; error_number is an errno.
  SystemError(const std::string& what, int error_number);

  // Return the errno of the failed call; 0 if it is not known.
  int error_number() const { return error_number_; }

 private:
  int error_number_ = 0;
};

}  // namespace smdist
