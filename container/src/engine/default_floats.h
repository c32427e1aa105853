// SPDX-License-Identifier: Apache-2.0
// The default floating-point environment.
#pragma once

#include <cfenv>

namespace smdist {

// Sums must not depend on the rounding or denormal mode of the thread that computes them. While
// this object lives, its thread has the default modes.
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
