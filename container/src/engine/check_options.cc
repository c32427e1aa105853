// SPDX-License-Identifier: Apache-2.0
// Checks of the options of an engine.
#include <numeric>
#include <string>

#include "collectives/sharding.h"
#include "engine/checks.h"
#include "messaging/frame.h"
#include "smdist/errors.h"
#include "smdist/options.h"

namespace smdist {
namespace {

void require(bool holds, const std::string& fault) {
  if (!holds) throw UsageError("the engine's options are wrong: " + fault);
}

void require_one_each(const char* what, size_t count, int size) {
  require(count == 0 || count == static_cast<size_t>(size),
          std::string("there are ") + std::to_string(count) + " " + what + " for " +
              std::to_string(size) + " ranks. Pass one for each rank, or none");
}

}  // namespace

void check(const Options& options) {
  require(options.size >= 1,
          "size is " + std::to_string(options.size) + ", but it must be at least 1");
  require(options.rank >= 0 && options.rank < options.size,
          "rank is " + std::to_string(options.rank) +
              ", but it must be from 0 to size - 1, and size is " + std::to_string(options.size));
  require_one_each("names", options.names.size(), options.size);
  require_one_each("hosts", options.hosts.size(), options.size);
  require(options.fragment_bytes > 0, "fragment_bytes is 0, but it must be above 0");
  require(options.window > 0, "window is 0, but it must be above 0");
  for (const size_t bytes : {options.eager_bytes, options.shared_eager_bytes}) {
    require(bytes <= kMaxEagerBytes, "eager messages may have " + std::to_string(bytes) +
                                         " bytes, but at most " + std::to_string(kMaxEagerBytes) +
                                         " bytes are supported");
  }
  require(options.block_bytes > 0 && options.block_bytes % kShardAlignment == 0 &&
              options.block_bytes <= UINT32_MAX,
          "block_bytes is " + std::to_string(options.block_bytes) +
              ", but it must be a positive multiple of " + std::to_string(kShardAlignment) +
              " below 4 GiB");
  require(options.blocks_per_peer > 1, "blocks_per_peer is " +
                                           std::to_string(options.blocks_per_peer) +
                                           ", but it must be at least 2");
  const Protection& protection = options.protection;
  const bool needs_openssl = protection.encrypt || protection.integrity == Integrity::kMac;
  require(!needs_openssl || has_openssl(),
          std::string(protection.encrypt ? "encrypt is true" : "integrity is 'mac'") +
              ", which needs OpenSSL, but this build of the smdist runtime has none. Install "
              "libssl-dev and build the runtime again");
  require(options.max_lanes >= 1 && options.max_lanes <= kMaxLanes,
          "max_lanes is " + std::to_string(options.max_lanes) + ", but it must be from 1 to " +
              std::to_string(kMaxLanes));
  require(options.tuning.lanes <= options.max_lanes,
          "the tuning has " + std::to_string(options.tuning.lanes) + " lanes, but max_lanes is " +
              std::to_string(options.max_lanes));
  require(options.start_timeout.count() > 0, "start_timeout is not above 0");
  constexpr std::chrono::milliseconds kShortestSilence = std::chrono::seconds(1);
  constexpr std::chrono::milliseconds kLongestSilence = std::chrono::hours(24);
  require(options.silence >= kShortestSilence && options.silence <= kLongestSilence,
          "silence is " + std::to_string(options.silence.count()) +
              " ms, but it must be from 1,000 to 86,400,000 ms");
  require(options.late_after.count() > 0 && options.late_again.count() > 0,
          "late_after or late_again is not above 0");
  check(options.tuning, options.size);
}

void check(const Tuning& tuning, int size) {
  require(tuning.lanes >= 1 && tuning.lanes <= kMaxLanes,
          "lanes is " + std::to_string(tuning.lanes) + ", but it must be from 1 to " +
              std::to_string(kMaxLanes));
  require(tuning.chunk_bytes > 0 && tuning.chunk_bytes % kShardAlignment == 0,
          "chunk_bytes is " + std::to_string(tuning.chunk_bytes) +
              ", but it must be a positive multiple of " + std::to_string(kShardAlignment));
  const Weights& weights = tuning.shard_weights;
  require_one_each("shard weights", weights.size(), size);
  const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  require(weights.empty() || total > 0,
          "all shard weights are 0, but at least one must be above 0");
}

}  // namespace smdist
