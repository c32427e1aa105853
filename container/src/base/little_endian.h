// SPDX-License-Identifier: Apache-2.0
// Conversion of unsigned integers to and from bytes in little-endian order, as in the wire format.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smdist {

// Write a number to the bytes at `at`.
template <typename Unsigned>
void put(uint8_t* at, Unsigned value) {
  for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

// Read a number from the bytes at `at`.
template <typename Unsigned>
Unsigned get(const uint8_t* at) {
  Unsigned value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<Unsigned>(value | static_cast<Unsigned>(Unsigned{at[i]} << (8 * i)));
  }
  return value;
}

}  // namespace smdist
