// SPDX-License-Identifier: Apache-2.0
// Content of a LATE frame: ranks for which others wait in an operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"

namespace smdist {

// Last operation that a rank has posted, as far as another rank knows.
struct LastOperation {
  uint32_t group = 0;
  uint64_t sequence = 0;
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  uint64_t bytes = 0;
  std::chrono::milliseconds age{};  // time since it was posted
};

// Rank for which others wait.
struct LateRank {
  bool has_come = false;  // true: the rank has posted the operation, but its data are missing
  std::optional<LastOperation> last;
};

using LateRanks = std::map<int, LateRank>;  // by engine rank

// Operation in which ranks wait, and for whom.
struct LateReport {
  Descriptor descriptor;
  std::chrono::milliseconds waited{};  // time since the first of them has posted the operation
  LateRanks ranks;
};

// Return the bytes of a report for the wire.
std::string encode(const LateReport& report);

// Decode a report. num_ranks: number of ranks of the engine. Throws PeerError; its text is the rest
// of a sentence that begins with the sender's name.
LateReport decode_late_report(const std::vector<uint8_t>& payload, int num_ranks);

// Add the ranks of `other`. Of two last operations of a rank, the one that was posted last stays.
void merge(LateRanks& ranks, const LateRanks& other);

// Return a text such as "operation 16 of group 0, all_reduce of 4096 bytes of float32, 12 s ago".
std::string text_of(const LastOperation& last);

// Return the ranks as a JSON list for programs, of at most 16 ranks; docs/debugging.md describes
// it.
std::string json_of(const LateRanks& ranks);

}  // namespace smdist
