// SPDX-License-Identifier: Apache-2.0
#include "smdist/probe.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "messaging/operation_id.h"
#include "tuning/all_reduce_timer.h"

namespace smdist {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr double kFineTuningSeconds =
    1;  // time limit of the fine tuning; values not measured by then keep their defaults
constexpr double kLanesSeconds = 0.8;  // time limit for each number of lanes

// Limits of the length of the buffer with which long all-reduces are measured.
constexpr size_t kShortestLong = 512 * kKiB;
constexpr size_t kLongestLong = 8 << 20;
constexpr double kLongSeconds = 0.012;

// Maximum time after a change, as a share of the time before, for which the change is made.
constexpr double kLanesGain = 0.8;
constexpr double kGain = 0.92;

// Maximum slowdown of a one-shot all-reduce for which it is still used: it needs less processor
// time.
constexpr double kAcceptedSlowdown = 1.1;

Tuning tuning_of(const Fixed& fixed) {
  Tuning tuning;
  tuning.lanes = fixed.lanes.value_or(tuning.lanes);
  tuning.chunk_bytes = fixed.chunk_bytes.value_or(tuning.chunk_bytes);
  tuning.one_shot_bytes = fixed.one_shot_bytes.value_or(tuning.one_shot_bytes);
  tuning.single_owner_bytes = fixed.single_owner_bytes.value_or(tuning.single_owner_bytes);
  tuning.arriving_bytes = fixed.arriving_bytes.value_or(tuning.arriving_bytes);
  tuning.shard_weights = fixed.shard_weights;
  return tuning;
}

class Probe final {
 public:
  Probe(Engine& engine, const World& world, const Fixed& fixed, std::chrono::milliseconds timeout)
      : timer_(engine, kStartGroup, timeout), world_(world), fixed_(fixed) {
    tuning_ = tuning_of(fixed);
  }

  Findings run() {
    Findings findings;
    findings.latency = latency_ = timer_.time(tuning_, sizeof(double));
    choose_long();
    if (num_hosts() > 1 && !fixed_.arriving_bytes) choose_arriving();
    if (num_hosts() > 1 && !fixed_.lanes) choose_lanes();
    begin_ = timer_.total();
    if (!fixed_.one_shot_bytes) choose_one_shot();
    if (!fixed_.single_owner_bytes) choose_single_owner();
    if (!fixed_.chunk_bytes) choose_chunk();
    findings.tuning = tuning_;
    findings.seconds = timer_.total();
    findings.bandwidth = bandwidth();
    return findings;
  }

 private:
  size_t num_hosts() const {
    return std::set<int>(world_.hosts.begin(), world_.hosts.end()).size();
  }
  size_t most_on_a_host() const {
    std::map<int, size_t> counts;
    for (const int host : world_.hosts) ++counts[host];
    size_t most = 0;
    for (const auto& [host, count] : counts) most = std::max(most, count);
    return most;
  }
  bool is_time_left() const { return timer_.total() - begin_ < kFineTuningSeconds; }

  // Returns the bus bandwidth per host, or per rank if there is one host.
  double bandwidth() const {
    const auto parts = static_cast<double>(num_hosts() > 1 ? num_hosts() : world_.size);
    return 2 * (parts - 1) / parts * static_cast<double>(long_bytes_) / long_seconds_;
  }

  void choose_long() {
    long_bytes_ = kShortestLong;
    long_seconds_ = timer_.time(tuning_, long_bytes_);
    while (long_seconds_ < kLongSeconds && long_bytes_ < kLongestLong) {
      long_bytes_ *= 2;
      long_seconds_ = timer_.time(tuning_, long_bytes_);
    }
  }

  // Uses a tuning from now on if sums of `bytes` bytes take at most `share` of the present time
  // with it, in two measurements in a row, because other load on the machine disturbs single ones.
  // Returns whether the tuning is used.
  bool adopt(const Tuning& tuning, size_t bytes, double share) {
    for (int turn = 0; turn < 2; ++turn) {
      const double now = timer_.time(tuning_, bytes);
      if (timer_.time(tuning, bytes) > share * now) return false;
    }
    tuning_ = tuning;
    return true;
  }

  // Sets arriving_bytes to the largest of: the default, which suits switches with shallow queues;
  // the bandwidth-delay product; and one maximal segmentation-offload packet per connection,
  // because smaller packets double the work of the processors.
  void choose_arriving() {
    constexpr size_t kPacket = 64 * kKiB;
    const auto on_the_line = static_cast<size_t>(bandwidth() * latency_) / kKiB * kKiB;
    const size_t connections = most_on_a_host() * (num_hosts() - 1);
    tuning_.arriving_bytes = std::max({tuning_.arriving_bytes, on_the_line, connections * kPacket});
  }

  // Doubles the number of lanes as long as that saves time. The measured sums are long enough to
  // send one chunk over every lane to every host.
  void choose_lanes() {
    constexpr double kTimes = 8;  // approximate number of runs per measurement
    Tuning tuning = tuning_;
    size_t bytes = 0;
    const auto is_affordable = [&] {
      return kTimes * long_seconds_ * static_cast<double>(bytes) <
             kLanesSeconds * static_cast<double>(long_bytes_);
    };
    do {
      tuning.lanes *= 2;
      bytes = num_hosts() * tuning.lanes * tuning.chunk_bytes;
    } while (tuning.lanes <= kMaxLanes && is_affordable() && adopt(tuning, bytes, kLanesGain));
  }

  void choose_chunk() {
    for (const size_t bytes : {128 * kKiB, 512 * kKiB}) {
      Tuning tuning = tuning_;
      tuning.chunk_bytes = bytes;
      if (is_time_left()) adopt(tuning, long_bytes_, kGain);
    }
    long_seconds_ = timer_.time(tuning_, long_bytes_);
  }

  // Sets one_shot_bytes to the longest tried length for which a one-shot all-reduce is about as
  // fast.
  void choose_one_shot() {
    tuning_.one_shot_bytes = longest_of([&](size_t bytes) {
      return share_of(tuning_with(bytes, 0), bytes, 1, kAcceptedSlowdown) <= kAcceptedSlowdown;
    });
  }

  // Sets single_owner_bytes to the longest tried length for which a burst of sums is faster with
  // one owner each, by at least the factor by which one owner slows down a single sum.
  void choose_single_owner() {
    constexpr size_t kMany = 16;
    tuning_.single_owner_bytes = longest_of([&](size_t bytes) {
      if (bytes <= tuning_.one_shot_bytes) return true;
      const Tuning by_owner = tuning_with(0, bytes);
      const double of_many = share_of(by_owner, bytes, kMany, kGain);
      return of_many <= kGain && of_many * share_of(by_owner, bytes, 1, 1 / of_many) <= 1;
    });
  }

  // Returns the time of `burst` sums with a tuning as a share of their time with shards: the
  // shortest times of several turns, because other load and links that store up unused bandwidth
  // disturb single ones. Stops as soon as the share is above `limit`.
  double share_of(const Tuning& tuning, size_t bytes, size_t burst, double limit) {
    constexpr int kTurns = 3;
    double with = std::numeric_limits<double>::infinity();
    double by_shards = with;
    double share = 0;
    for (int turn = 0; turn < kTurns && share <= limit; ++turn) {
      with = std::min(with, timer_.time(tuning, bytes, burst));
      by_shards = std::min(by_shards, timer_.time(tuning_with(0, 0), bytes, burst));
      share = with / by_shards;
    }
    return share;
  }

  // Returns the longest tried length for which `suits` returns true. Stops after two failures in a
  // row, because a single one may be noise.
  template <typename Suits>
  size_t longest_of(Suits suits) {
    size_t longest = 0;
    int failures = 0;
    for (size_t bytes = kKiB; bytes <= 256 * kKiB && failures < 2 && is_time_left(); bytes *= 4) {
      const bool is_suited = suits(bytes);
      failures = is_suited ? 0 : failures + 1;
      if (is_suited) longest = bytes;
    }
    return longest;
  }

  Tuning tuning_with(size_t one_shot_bytes, size_t single_owner_bytes) const {
    Tuning tuning = tuning_;
    tuning.one_shot_bytes = one_shot_bytes;
    tuning.single_owner_bytes = single_owner_bytes;
    return tuning;
  }

  AllReduceTimer timer_;
  const World& world_;
  const Fixed& fixed_;
  Tuning tuning_;
  double latency_ = 0;
  double begin_ = 0;       // timer value when the budget of is_time_left() began
  size_t long_bytes_ = 0;  // length of measured long sums
  double long_seconds_ = 0;
};

}  // namespace

Findings probe(Engine& engine, const World& world, const Fixed& fixed,
               std::chrono::milliseconds timeout) {
  Findings findings;
  findings.tuning = tuning_of(fixed);
  if (world.size > 1 && !fixed.is_all()) {
    std::vector<int> all_ranks(static_cast<size_t>(world.size));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    engine.add_group(kStartGroup, all_ranks);
    findings = Probe(engine, world, fixed, timeout).run();
    engine.remove_group(kStartGroup);
  }
  engine.tune(findings.tuning, true);
  return findings;
}

}  // namespace smdist
