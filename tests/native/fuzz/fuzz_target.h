// SPDX-License-Identifier: Apache-2.0
// List of the fuzz targets. libFuzzer runs one of them (libfuzzer_main.cc), the test replays the
// corpora of all (corpus_test.cc).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fuzz_input.h"

namespace smdist::fuzzing {

struct FuzzTarget {
  const char* name;
  void (*run)(FuzzInput& input);
};

inline std::vector<FuzzTarget>& fuzz_targets() {
  static std::vector<FuzzTarget> targets;
  return targets;
}

// Adds a target to the list when the program starts.
struct Registration {
  Registration(const char* name, void (*run)(FuzzInput&)) { fuzz_targets().push_back({name, run}); }
};

// Ends the program: the input has broken a promise of the code.
[[noreturn]] inline void report_broken(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
  std::abort();
}

}  // namespace smdist::fuzzing

// Define a target: the name is followed by the function's body, which reads `input`.
#define FUZZ_TARGET(name)                                                               \
  static void run_##name(::smdist::fuzzing::FuzzInput& input);                          \
  static const ::smdist::fuzzing::Registration name##_registration(#name, &run_##name); \
  static void run_##name([[maybe_unused]] ::smdist::fuzzing::FuzzInput& input)

#define FUZZ_CHECK(condition) \
  if (!(condition)) ::smdist::fuzzing::report_broken(__FILE__, __LINE__, #condition)
