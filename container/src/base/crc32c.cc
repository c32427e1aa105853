// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define SMDIST_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define SMDIST_CRC_TARGET
#endif

namespace smdist {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

using ByteTable = std::array<uint32_t, 256>;

// Return the effect of each value of a byte on a register of zeros.
constexpr ByteTable make_byte_table() {
  ByteTable table{};
  for (uint32_t value = 0; value < 256; ++value) {
    uint32_t crc = value;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[value] = crc;
  }
  return table;
}

constexpr ByteTable kByteTable = make_byte_table();

// Updates the register, which is the inverted checksum.
uint32_t update_by_table(uint32_t crc, const uint8_t* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kByteTable[(crc ^ data[i]) & 0xff];
  return crc;
}

#if defined(SMDIST_CRC_TARGET)

// The instruction has a latency of three cycles, and one can start in every cycle. So three parts
// of this size are computed at a time, and then combined.
constexpr size_t kPartBytes = 2048;

// The effect of kPartBytes zeros on a register, which is linear: one table for each byte of it.
class ZerosOperator final {
 public:
  ZerosOperator() {
    static const uint8_t zeros[kPartBytes] = {};
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; ++bit) {
      of_bit[bit] = update_by_table(uint32_t{1} << bit, zeros, kPartBytes);
    }
    for (size_t byte = 0; byte < 4; ++byte) {
      for (size_t value = 0; value < 256; ++value) {
        for (size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) tables_[byte][value] ^= of_bit[8 * byte + bit];
        }
      }
    }
  }

  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<ByteTable, 4> tables_{};
};

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

SMDIST_CRC_TARGET inline uint32_t step(uint32_t crc, uint64_t word) {
#if defined(__x86_64__)
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
#else
  // Assembly, because GCC and Clang differ in how a function may use the instruction.
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
#endif
}

SMDIST_CRC_TARGET uint32_t update_by_instruction(uint32_t crc, const uint8_t* data, size_t bytes) {
  static const ZerosOperator append_part;
  for (; bytes >= 3 * kPartBytes; bytes -= 3 * kPartBytes, data += 3 * kPartBytes) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t i = 0; i < kPartBytes; i += 8) {
      crc = step(crc, word_at(data + i));
      second = step(second, word_at(data + kPartBytes + i));
      third = step(third, word_at(data + 2 * kPartBytes + i));
    }
    crc = append_part(append_part(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, data += 8) crc = step(crc, word_at(data));
  return update_by_table(crc, data, bytes);
}

#endif

}  // namespace

bool has_crc32c_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return false;
#endif
}

uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t crc) {
  return ~update_by_table(~crc, static_cast<const uint8_t*>(data), bytes);
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
#if defined(SMDIST_CRC_TARGET)
  static const bool has_instruction = has_crc32c_instruction();
  if (has_instruction) {
    return ~update_by_instruction(~crc, static_cast<const uint8_t*>(data), bytes);
  }
#endif
  return crc32c_by_table(data, bytes, crc);
}

}  // namespace smdist
