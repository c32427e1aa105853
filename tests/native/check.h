// SPDX-License-Identifier: Apache-2.0
// A minimal test library for the native tests.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

namespace smdist::testing {

// Sanitizers are slower, by a factor that grows with what else the processors do.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr unsigned kSecondsToHang = 270;
#else
constexpr unsigned kSecondsToHang = 90;
#endif

}  // namespace smdist::testing

#ifdef __SANITIZE_THREAD__
// Suppress reports of the end of an exception that several threads hold: libstdc++ counts its
// references by atomic operations that ThreadSanitizer does not see.
extern "C" __attribute__((used)) inline const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
#endif

namespace smdist::testing {

inline const char* current_test = "no test";

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, current_test, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

// Ends a test that hangs, and prints its name.
inline void on_alarm(int) {
  const char text[] = ": hangs\n";
  (void)!::write(2, current_test, std::strlen(current_test));
  (void)!::write(2, text, sizeof text - 1);
  ::_exit(1);
}

template <typename Test>
void run(const char* name, Test test, unsigned limit_seconds = kSecondsToHang) {
  current_test = name;
  ::signal(SIGALRM, on_alarm);
  ::alarm(limit_seconds);
  test();
  ::alarm(0);
  std::printf("ok %s\n", name);
  std::fflush(stdout);
}

template <typename A, typename B>
void check_equal(const char* file, int line, const char* text, const A& expected, const B& actual) {
  if (expected == actual) return;
  std::ostringstream what;
  what << text << ": expected " << +expected << ", is " << +actual;
  fail(file, line, what.str());
}

inline void check_contains(const char* file, int line, const std::string& part,
                           const std::string& whole) {
  if (whole.find(part) != std::string::npos) return;
  fail(file, line, "expected '" + part + "' in '" + whole + "'");
}

}  // namespace smdist::testing

#define RUN(test) ::smdist::testing::run(#test, test)
#define CHECK(condition) \
  if (!(condition)) ::smdist::testing::fail(__FILE__, __LINE__, "does not hold: " #condition)
#define CHECK_EQ(expected, actual) \
  ::smdist::testing::check_equal(__FILE__, __LINE__, #actual, expected, actual)
#define CHECK_CONTAINS(part, whole) \
  ::smdist::testing::check_contains(__FILE__, __LINE__, part, whole)
