// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "smdist/errors.h"

namespace smdist {

void fill_with_random(void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t filled = ::getrandom(at, bytes, 0);
    if (filled < 0 && errno == EINTR) continue;
    if (filled < 0) throw SystemError("getrandom() failed", errno);
    at += filled;
    bytes -= static_cast<size_t>(filled);
  }
}

}  // namespace smdist
