// SPDX-License-Identifier: Apache-2.0
// Strings in JSON.
#pragma once

#include <string>

namespace smdist {

// Return the text as a JSON string, with its quotes. Bytes above 127 are copied, so the result is
// valid UTF-8 if the text is.
inline std::string json_text(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string json = "\"";
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\') {
      json += {'\\', each};
    } else if (byte < 0x20) {
      json += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      json += each;
    }
  }
  return json + "\"";
}

}  // namespace smdist
