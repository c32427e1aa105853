// SPDX-License-Identifier: Apache-2.0
// Sums in shared memory, in random orders of events.
#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cluster.h"
#include "collectives/shards.h"
#include "engine/exchanges.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

using Ints = std::vector<int32_t>;
using Members = SharedSum::Members;

struct Setting {
  size_t ranks = 0;
  size_t count = 0;  // of each buffer
  Weights weights;
  size_t piece_bytes = 0;
};

// One rank, whose sums are done one after the other.
class Rank final {
 public:
  Rank(const Options& options, size_t number, const Setting& setting)
      : number_(number),
        setting_(setting),
        layout_(options),
        memory_(layout_.bytes / sizeof(uint64_t) + 1),
        exchanges_(layout_, arena()),
        met_(setting.ranks) {}

  Span arena() { return {memory_.data(), layout_.bytes}; }
  size_t sums() const { return sums_; }
  bool is_idle() const { return sum_ == nullptr; }
  SharedSum& sum() { return *sum_; }
  const Ints& data() const { return data_; }
  const Meeting& meeting() const { return meetings_.back(); }
  const Meeting& meeting_of(size_t sum) const { return meetings_[sum - 1]; }

  bool begin() {
    data_ = values_of(number_ + 1, sums_ + 1, 1);
    auto* at = reinterpret_cast<uint8_t*>(data_.data());
    sum_ = exchanges_.begin({Dtype::kInt32, ReduceOp::kSum, 1, at, at,
                             shard_boundaries(4 * setting_.count, setting_.weights),
                             std::min(setting_.piece_bytes, exchanges_.slot_bytes())},
                            number_);
    if (sum_ == nullptr) return false;
    ++sums_;
    meetings_.push_back(exchanges_.meeting_of(*sum_));
    met_.assign(setting_.ranks, false);
    return true;
  }
  bool meet(size_t other, const Span& arena, const Meeting& meeting) {
    if (met_[other]) return false;
    met_[other] = true;
    sum_->meet(other, exchanges_.at(arena, meeting), meeting.count);
    return true;
  }
  void end() { sum_ = nullptr; }
  // Different ones everywhere; of the sum of all ranks for `factor` = the sum of their numbers.
  Ints values_of(size_t factor, size_t sum, size_t ranks) const {
    Ints values(setting_.count);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int32_t>(factor * sum + ranks * 7 * i);
    }
    return values;
  }
  void cancel() {
    exchanges_.cancel(*sum_);
    sum_ = nullptr;
    --sums_;
    meetings_.pop_back();
  }

  Members awaited = 0;  // when nothing could be done last
  bool is_blocked = false;

 private:
  const size_t number_;
  const Setting& setting_;
  const ArenaLayout layout_;
  std::vector<uint64_t> memory_;
  Exchanges exchanges_;
  SharedSum* sum_ = nullptr;
  std::vector<Meeting> meetings_;  // of all sums
  Ints data_;
  std::vector<bool> met_;
  size_t sums_ = 0;  // begun
};

class Host final {
 public:
  static constexpr size_t kSums = 5;

  Host(const Setting& setting, const Options& options, uint32_t seed)
      : setting_(setting), random_(seed) {
    for (size_t rank = 0; rank < setting.ranks; ++rank) ranks_.emplace_back(options, rank, setting);
  }

  void run() {
    while (!is_over()) {
      const size_t first = random_();
      bool is_any = false;
      for (size_t i = 0; i < setting_.ranks && !is_any; ++i) {
        is_any = act((first + i) % setting_.ranks);
      }
      CHECK(is_any);  // else all wait for each other
    }
  }

 private:
  bool is_over() const {
    for (const Rank& rank : ranks_) {
      if (!rank.is_idle() || rank.sums() < kSums) return false;
    }
    return true;
  }

  bool act(size_t number) {
    Rank& rank = ranks_[number];
    if (rank.is_idle()) return rank.sums() < kSums && rank.begin();
    const bool meets_first = random_() % 2 == 0;
    return (meets_first && meet(number)) || advance(number) || (!meets_first && meet(number));
  }

  bool meet(size_t number) {
    for (size_t other = 0; other < setting_.ranks; ++other) {
      Rank& theirs = ranks_[other];
      const size_t sum = ranks_[number].sums();
      if (other == number || theirs.sums() < sum) continue;
      if (!ranks_[number].meet(other, theirs.arena(), theirs.meeting_of(sum))) continue;
      ranks_[number].is_blocked = false;
      return true;
    }
    return false;
  }

  bool advance(size_t number) {
    Rank& rank = ranks_[number];
    const Members told = rank.sum().advance();
    if (told == 0) {
      rank.is_blocked = true;
      rank.awaited = rank.sum().awaited();
      return false;
    }
    rank.is_blocked = false;
    check_sleepers(number, told);
    if (rank.sum().is_done()) end(number);
    return true;
  }

  // Who could do nothing, and does not wait for this rank or is not told, still cannot.
  void check_sleepers(size_t number, Members told) {
    for (size_t other = 0; other < setting_.ranks; ++other) {
      Rank& sleeper = ranks_[other];
      if (!sleeper.is_blocked || sleeper.is_idle()) continue;
      const bool is_woken = (told >> other & 1) != 0 && (sleeper.awaited >> number & 1) != 0;
      if (is_woken) {
        sleeper.is_blocked = false;
      } else {
        CHECK(sleeper.sum().advance() == 0);
      }
    }
  }

  void end(size_t number) {
    const size_t n = setting_.ranks;
    Rank& rank = ranks_[number];
    CHECK(rank.data() == rank.values_of(n * (n + 1) / 2, rank.sums(), n));
    rank.end();
  }

  const Setting setting_;
  std::minstd_rand random_;
  std::deque<Rank> ranks_;
};

Options options_of(const Setting& setting, uint32_t window, size_t block_bytes) {
  Options options;
  options.size = static_cast<int>(setting.ranks);
  options.window = window;
  options.block_bytes = block_bytes;
  return options;
}

Setting random_setting(std::minstd_rand& random) {
  Setting setting;
  setting.ranks = 2 + random() % 4;
  setting.count = 1 + random() % 3000;
  setting.weights = equal_weights(static_cast<int>(setting.ranks));
  if (random() % 2 == 0) {
    for (uint32_t& weight : setting.weights) weight = static_cast<uint32_t>(random() % 3);
    setting.weights[0] = 1;
  }
  setting.piece_bytes = 64 * (1 + random() % 8);
  return setting;
}

void sums_are_right_in_any_order_and_nobody_sleeps_too_long() {
  std::minstd_rand random(5);
  for (int i = 0; i < 400; ++i) {
    const Setting setting = random_setting(random);
    const auto window = static_cast<uint32_t>(1 + random() % 4);
    Host host(setting, options_of(setting, window, 64 * (1 + random() % 8)),
              static_cast<uint32_t>(random()));
    host.run();
  }
}

void what_is_cancelled_leaves_the_exchange_to_the_next() {
  const Setting setting{2, 1000, equal_weights(2), 256};
  const Options options = options_of(setting, 2, 256);
  Rank ranks[] = {{options, 0, setting}, {options, 1, setting}};
  CHECK(ranks[0].begin());
  CHECK_EQ(Members{2}, ranks[0].sum().advance());  // given, and never read
  ranks[0].cancel();
  for (Rank& rank : ranks) CHECK(rank.begin());
  CHECK_EQ(0u, ranks[0].meeting().exchange);
  CHECK(ranks[0].meeting().count > 0);
  CHECK(ranks[0].meet(1, ranks[1].arena(), ranks[1].meeting()));
  CHECK(ranks[1].meet(0, ranks[0].arena(), ranks[0].meeting()));
  while (!ranks[0].sum().is_done() || !ranks[1].sum().is_done()) {
    CHECK((ranks[0].sum().advance() | ranks[1].sum().advance()) != 0);
  }
  for (const Rank& rank : ranks) CHECK(rank.data() == rank.values_of(3, 1, 2));
}

// Ranks at their first sum, who know of each other.
std::deque<Rank> met(const Setting& setting, const Options& options) {
  std::deque<Rank> ranks;
  for (size_t rank = 0; rank < setting.ranks; ++rank) {
    ranks.emplace_back(options, rank, setting).begin();
  }
  for (size_t rank = 0; rank < setting.ranks; ++rank) {
    for (size_t other = 0; other < setting.ranks; ++other) {
      if (other != rank) ranks[rank].meet(other, ranks[other].arena(), ranks[other].meeting());
    }
  }
  return ranks;
}

void who_keeps_all_others_waiting_is_named() {
  const Setting setting{3, 3000, equal_weights(3), 64};
  std::deque<Rank> ranks = met(setting, options_of(setting, 2, 64));
  for (int i = 0; i < 10; ++i) ranks[2].sum().advance();
  while ((ranks[0].sum().advance() | ranks[1].sum().advance()) != 0) continue;
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(ranks[rank].sum().needs(1 - rank));
    CHECK_EQ(Members{1 << 2}, ranks[rank].sum().slowest());
  }
}

// Between its look and its sleep the other one may have done what it waited for, and not said so.
void who_found_nothing_to_do_expects_what_has_come_since() {
  Setting setting{2, 100, {1, 0}, 64};  // all of it is the first rank's
  std::deque<Rank> ranks = met(setting, options_of(setting, 1, 64));
  CHECK_EQ(Members{0}, ranks[0].sum().advance());
  CHECK_EQ(Members{2}, ranks[0].sum().awaited());
  CHECK_EQ(Members{1}, ranks[1].sum().advance());
  CHECK_EQ(Members{2}, ranks[0].sum().awaited());
}

// The next sum may be one of other ranks.
void an_exchange_is_in_use_until_the_last_has_read_it() {
  const Setting setting{3, 48, equal_weights(3), 64};
  const Options options = options_of(setting, 1, 64);
  std::deque<Rank> ranks = met(setting, options);
  while (!ranks[0].sum().is_done() || !ranks[1].sum().is_done()) {
    const Members told = ranks[0].sum().advance() | ranks[1].sum().advance();
    if (told == 0) ranks[2].sum().advance();  // no sooner than the others need it
  }
  CHECK(!ranks[2].sum().is_done());
  CHECK(ranks[0].begin());
  CHECK_EQ(1u, ranks[0].meeting().exchange);
  ranks[0].cancel();
  while (!ranks[2].sum().is_done()) ranks[2].sum().advance();
  CHECK(ranks[0].begin());
  CHECK_EQ(0u, ranks[0].meeting().exchange);
}

void an_exchange_that_is_none_is_refused() {
  const Setting setting{2, 10, equal_weights(2), 64};
  const Options options = options_of(setting, 1, 64);
  Rank rank(options, 0, setting);
  const ArenaLayout layout(options);
  const Exchanges exchanges(layout, rank.arena());
  try {
    exchanges.at(rank.arena(), {static_cast<uint32_t>(layout.num_exchanges), 0});
    CHECK(false);
  } catch (const PeerError& error) {
    CHECK_CONTAINS("is at exchange 3, which it has not", error.what());
  }
}

// More sums at once than there are exchanges, begun in another order on each rank: some ranks have
// one left for a sum and others do not, also where most of them own no shard of it.
void sums_for_which_exchanges_do_not_suffice_are_done_by_plan() {
  constexpr int kRanks = 3;
  constexpr uint32_t kGroups = 40;
  for (const testing::Network network : {testing::Network::kShared, testing::Network::kLocal}) {
    testing::Cluster cluster(kRanks, network, [](Options& options) {
      options.tuning.one_shot_bytes = options.tuning.single_owner_bytes = 0;
    });
    std::vector<std::vector<float>> data(kRanks * kGroups);
    std::vector<testing::Result> results;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (uint32_t i = 0; i < kGroups; ++i) {
        const uint32_t group = 1 + (i * 7 + static_cast<uint32_t>(rank) * 13) % kGroups;
        cluster[rank].add_group(group, {0, 1, 2});
        std::vector<float>& values = data[static_cast<size_t>(rank) * kGroups + group - 1];
        values.assign(group % 2 == 0 ? 10 : 100'000, 1);
        results.push_back(testing::start(cluster[rank], group, testing::sum_of(values)));
      }
    }
    for (testing::Result& result : results) CHECK(testing::text_of(result).empty());
    for (const auto& values : data) CHECK(values == std::vector<float>(values.size(), 3));
  }
}

// More frames than the rings have room for; afterwards nobody has anything to do.
void engines_rest_after_a_burst() {
  testing::Cluster cluster(2, testing::Network::kLocal,
                           [](Options& options) { options.tuning.one_shot_bytes = 16 << 10; });
  for (int burst = 0; burst < 300; ++burst) {
    std::vector<std::vector<float>> data(2 * 20, std::vector<float>(1200, 1));
    std::vector<testing::Result> results;
    for (size_t i = 0; i < data.size(); ++i) {
      results.push_back(
          testing::start(cluster[static_cast<int>(i % 2)], 0, testing::sum_of(data[i])));
    }
    for (testing::Result& result : results) CHECK(testing::text_of(result).empty());
  }
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(seconds < 0.3);  // who looks without end takes 0.6
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(sums_are_right_in_any_order_and_nobody_sleeps_too_long);
  RUN(what_is_cancelled_leaves_the_exchange_to_the_next);
  RUN(who_keeps_all_others_waiting_is_named);
  RUN(who_found_nothing_to_do_expects_what_has_come_since);
  RUN(an_exchange_is_in_use_until_the_last_has_read_it);
  RUN(an_exchange_that_is_none_is_refused);
  RUN(sums_for_which_exchanges_do_not_suffice_are_done_by_plan);
  RUN(engines_rest_after_a_burst);
}
