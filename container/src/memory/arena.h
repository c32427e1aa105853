// SPDX-License-Identifier: Apache-2.0
// Shared memory of the processes on one host.
#pragma once

#include <cstddef>

#include "base/unique_fd.h"
#include "smdist/operation.h"

namespace smdist {

// Mapped shared memory that other processes of the host can read: a memfd of fixed size. Seals
// forbid to shrink it, so that no reader is killed by an access past its end. A forked child does
// not inherit the mapping.
//
// Thread safety: none.
class Arena final {
 public:
  Arena() = default;  // an empty arena
  ~Arena() { unmap(); }
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Create an arena filled with zeros. Throws SystemError.
  static Arena create(size_t bytes);
  // Map the arena of another process for reading. Throws SystemError, also if it is not sealed.
  static Arena adopt(UniqueFd fd);

  Span span() const { return span_; }
  int fd() const { return fd_.get(); }

 private:
  void map(int protection);
  void unmap();

  UniqueFd fd_;
  Span span_;
};

}  // namespace smdist
