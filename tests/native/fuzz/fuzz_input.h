// SPDX-License-Identifier: Apache-2.0
// Reader of one input of a fuzz target.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist::fuzzing {

// Reads numbers and bytes from the front of an input. After its end all numbers are zero, so that
// every input is valid.
class FuzzInput final {
 public:
  FuzzInput(const uint8_t* data, size_t bytes) : data_(data), left_(bytes) {}

  size_t left() const { return left_; }

  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }

  bool flag() { return (byte() & 1) != 0; }

  // Return a number of sizeof(Number) bytes.
  template <typename Number>
  Number number() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) value |= uint64_t{byte()} << (8 * i);
    return static_cast<Number>(value);
  }

  // Return a number below `limit`, which is from 1 to 256.
  size_t below(size_t limit) { return byte() % limit; }

  // Return the next bytes, at most `limit`.
  std::vector<uint8_t> bytes(size_t limit) {
    const size_t count = std::min(limit, left_);
    std::vector<uint8_t> taken(data_, data_ + count);
    data_ += count;
    left_ -= count;
    return taken;
  }
  std::vector<uint8_t> rest() { return bytes(left_); }

  // Write the next bytes over `target`, as far as there are any.
  template <typename Bytes>
  void fill(Bytes& target) {
    const std::vector<uint8_t> taken = bytes(target.size());
    std::copy(taken.begin(), taken.end(), target.begin());
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace smdist::fuzzing
