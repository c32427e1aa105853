// SPDX-License-Identifier: Apache-2.0
// Read and write unsigned integers in little-endian byte order, as the wire format has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smdist {

template <typename Unsigned>
void put(uint8_t* at, Unsigned value) {
  for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

template <typename Unsigned>
Unsigned get(const uint8_t* at) {
  Unsigned value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<Unsigned>(value | static_cast<Unsigned>(Unsigned{at[i]} << (8 * i)));
  }
  return value;
}

}  // namespace smdist
