// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one host share.
#pragma once

#include <cstddef>

#include "base/unique_fd.h"
#include "smdist/operation.h"

namespace smdist {

// A sealed memfd and where it is mapped: nobody can make it shorter, so nobody who
// reads it can be killed by its end. A forked child does not have it.
//
// Thread safety: none.
class Arena final {
 public:
  Arena() = default;  // none
  ~Arena() { unmap(); }
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // New memory, all zero. Throws SystemError.
  static Arena create(size_t bytes);
  // Somebody else's, to read. Throws SystemError, also if it is not sealed.
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
