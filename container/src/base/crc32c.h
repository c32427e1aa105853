// SPDX-License-Identifier: Apache-2.0
// CRC-32C, the checksum of iSCSI (RFC 3720, section 12.1): it finds every change of up to 32
// successive bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smdist {

// Return the CRC-32C of bytes that follow bytes with the checksum `crc`; 0: none come before. Uses
// the processor's instruction for it, if there is one.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// Return the same as crc32c(), computed with a table, on any processor.
uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t crc = 0);

// Return whether this processor has an instruction for CRC-32C.
bool has_crc32c_instruction();

}  // namespace smdist
