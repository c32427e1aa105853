// SPDX-License-Identifier: Apache-2.0
// Default floating-point environment for a thread.
#pragma once

#include <cfenv>

namespace smdist {

// Gives its thread the default rounding and denormal modes while the object exists, because sums
// must not depend on the modes of the thread that computes them.
class DefaultFloats final {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace smdist
