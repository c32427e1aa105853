// SPDX-License-Identifier: Apache-2.0
// Arithmetic as it is by default.
#pragma once

#include <cfenv>

namespace smdist {

// Sums must not depend on the rounding or denormal mode of the thread that makes them:
// while it lives, the thread has the default ones.
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
