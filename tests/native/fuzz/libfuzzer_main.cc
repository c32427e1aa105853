// SPDX-License-Identifier: Apache-2.0
// Entry points of libFuzzer. The environment variable SMDIST_FUZZ_TARGET names the target; without
// it the program prints the names of all.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz_target.h"

namespace {

void (*run_target)(smdist::fuzzing::FuzzInput&) = nullptr;

}  // namespace

// Suppress reports of attributes of a thread that is just starting: the sanitizer itself reads them
// there and frees them a moment later, which a check for leaks may see halfway.
extern "C" const char* __lsan_default_suppressions() { return "leak:__pthread_attr_extension\n"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* wanted = std::getenv("SMDIST_FUZZ_TARGET");
  for (const smdist::fuzzing::FuzzTarget& target : smdist::fuzzing::fuzz_targets()) {
    if (wanted == nullptr) std::printf("%s\n", target.name);
    if (wanted != nullptr && std::strcmp(wanted, target.name) == 0) run_target = target.run;
  }
  if (run_target != nullptr) return 0;
  if (wanted != nullptr) std::fprintf(stderr, "there is no fuzz target '%s'\n", wanted);
  std::exit(wanted == nullptr ? 0 : 2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  smdist::fuzzing::FuzzInput input(data, bytes);
  run_target(input);
  return 0;
}
