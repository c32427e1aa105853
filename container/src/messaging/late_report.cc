// SPDX-License-Identifier: Apache-2.0
#include "messaging/late_report.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/little_endian.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxJsonRanks = 16;  // the JSON text fits in the details of a fault
constexpr uint64_t kMaxMilliseconds = uint64_t{1} << 42;  // more than a hundred years
constexpr uint8_t kHasCome = 1;
constexpr uint8_t kHasLast = 2;

void append(std::string& payload, int rank, const LateRank& late) {
  uint8_t bytes[kLateRankBytes] = {};
  const LastOperation last = late.last.value_or(LastOperation{});
  put<uint32_t>(&bytes[0], static_cast<uint32_t>(rank));
  bytes[4] = static_cast<uint8_t>((late.has_come ? kHasCome : 0) | (late.last ? kHasLast : 0));
  bytes[5] = static_cast<uint8_t>(last.kind);
  bytes[6] = static_cast<uint8_t>(last.dtype);
  put<uint32_t>(&bytes[8], last.group);
  put<uint64_t>(&bytes[12], last.sequence);
  put<uint64_t>(&bytes[20], last.bytes);
  put<uint64_t>(&bytes[28], static_cast<uint64_t>(last.age.count()));
  payload.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

milliseconds milliseconds_at(const uint8_t* at) {
  return milliseconds(static_cast<int64_t>(std::min(get<uint64_t>(at), kMaxMilliseconds)));
}

LateRank late_rank_at(const uint8_t* bytes) {
  const bool is_known = bytes[4] <= (kHasCome | kHasLast) && bytes[5] < kCollectives &&
                        bytes[6] < kDtypes && bytes[7] == 0;
  if (!is_known) {
    throw PeerError("sent a report on late ranks with a kind or dtype that does not exist");
  }
  LateRank late;
  late.has_come = (bytes[4] & kHasCome) != 0;
  if ((bytes[4] & kHasLast) == 0) return late;
  late.last = {get<uint32_t>(&bytes[8]),          get<uint64_t>(&bytes[12]),
               static_cast<Collective>(bytes[5]), static_cast<Dtype>(bytes[6]),
               get<uint64_t>(&bytes[20]),         milliseconds_at(&bytes[28])};
  return late;
}

std::string seconds_text(milliseconds time) {
  const auto tenths = time.count() / 100;
  const std::string whole = std::to_string(tenths / 10);
  return tenths < 100 && tenths % 10 != 0 ? whole + "." + std::to_string(tenths % 10) : whole;
}

}  // namespace

std::string encode(const LateReport& report) {
  const DescriptorBytes descriptor = encode(report.descriptor);
  std::string payload(descriptor.begin(), descriptor.end());
  uint8_t waited[8];
  put<uint64_t>(waited, static_cast<uint64_t>(report.waited.count()));
  payload.append(reinterpret_cast<const char*>(waited), sizeof waited);
  for (const auto& [rank, late] : report.ranks) {
    if (payload.size() == kMaxLateBytes) break;
    append(payload, rank, late);
  }
  return payload;
}

LateReport decode_late_report(const std::vector<uint8_t>& payload, int num_ranks) {
  if (payload.size() < kLatePrefixBytes ||
      (payload.size() - kLatePrefixBytes) % kLateRankBytes != 0) {
    throw PeerError("sent a report on late ranks that is truncated");
  }
  DescriptorBytes descriptor{};
  std::copy_n(payload.begin(), kDescriptorBytes, descriptor.begin());
  LateReport report;
  report.descriptor = decode_descriptor(descriptor);
  report.waited = milliseconds_at(&payload[kDescriptorBytes]);
  for (size_t at = kLatePrefixBytes; at < payload.size(); at += kLateRankBytes) {
    const auto rank = get<uint32_t>(&payload[at]);
    if (rank >= static_cast<uint32_t>(num_ranks)) {
      throw PeerError("sent a report on rank " + std::to_string(rank) + ", which does not exist");
    }
    report.ranks[static_cast<int>(rank)] = late_rank_at(&payload[at]);
  }
  return report;
}

void merge(LateRanks& ranks, const LateRanks& other) {
  for (const auto& [rank, theirs] : other) {
    LateRank& ours = ranks.try_emplace(rank, theirs).first->second;
    ours.has_come = ours.has_come || theirs.has_come;
    if (theirs.last && (!ours.last || theirs.last->age < ours.last->age)) ours.last = theirs.last;
  }
}

std::string text_of(const LastOperation& last) {
  const bool is_message = is_point_to_point(last.kind);
  std::string text = (is_message ? "message " : "operation ") + std::to_string(last.sequence) +
                     " of group " + std::to_string(last.group) + ", " + name_of(last.kind);
  if (last.kind != Collective::kBarrier) {
    text += " of " + std::to_string(last.bytes) + " bytes of " + name_of(last.dtype);
  }
  return text + ", " + seconds_text(last.age) + " s ago";
}

std::string json_of(const LateRanks& ranks) {
  std::string json = "[";
  size_t count = 0;
  for (const auto& [rank, late] : ranks) {
    if (++count > kMaxJsonRanks) break;
    json += std::string(count > 1 ? "," : "") + "{\"rank\":" + std::to_string(rank) +
            ",\"has_come\":" + (late.has_come ? "true" : "false") + ",\"last_operation\":";
    if (!late.last) {
      json += "null}";
      continue;
    }
    const LastOperation& last = *late.last;
    json += std::string("{\"kind\":\"") + name_of(last.kind) + "\",\"dtype\":\"" +
            name_of(last.dtype) + "\",\"bytes\":" + std::to_string(last.bytes) +
            ",\"group\":" + std::to_string(last.group) +
            ",\"sequence\":" + std::to_string(last.sequence) +
            ",\"seconds_ago\":" + std::to_string(last.age.count() / 1000) + "}}";
  }
  return json + "]";
}

}  // namespace smdist
