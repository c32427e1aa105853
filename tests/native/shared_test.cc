// SPDX-License-Identifier: Apache-2.0
// Sums in shared memory, with events in random orders.
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
#include "collectives/sharding.h"
#include "engine/reduction_buffer_pool.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

using Ints = std::vector<int32_t>;
using MemberSet = SharedSum::MemberSet;

struct Setting {
  size_t ranks = 0;
  size_t count = 0;  // of each buffer
  Weights weights;
  size_t chunk_bytes = 0;
  uint32_t readable = 0;  // bit r: rank r has its data in memory that the others read
};

// One rank, which runs its sums one after the other.
class Rank final {
 public:
  Rank(const Options& options, size_t number, const Setting& setting)
      : number_(number),
        setting_(setting),
        layout_(options),
        own_(setting.count),
        memory_(layout_.bytes / sizeof(uint64_t) + 1),
        buffers_(layout_, arena()),
        met_(setting.ranks) {
    const bool is_readable = (setting.readable >> number & 1) != 0;
    values_ =
        is_readable ? static_cast<int32_t*>(layout_.caller_memory(arena()).data) : own_.data();
  }

  Span arena() { return {memory_.data(), layout_.bytes}; }
  size_t sums() const { return sums_; }
  bool is_idle() const { return sum_ == nullptr; }
  SharedSum& sum() { return *sum_; }
  Ints data() const { return {values_, values_ + setting_.count}; }
  const SharedSumTicket& ticket() const { return tickets_.back(); }
  const SharedSumTicket& ticket_of(size_t sum) const { return tickets_[sum - 1]; }

  bool begin() {
    const Ints input = values_of(number_ + 1, sums_ + 1, 1);
    std::copy(input.begin(), input.end(), values_);
    auto* at = reinterpret_cast<uint8_t*>(values_);
    const bool is_readable = buffers_.is_readable({at, 4 * setting_.count});
    sum_ = buffers_.begin({Dtype::kInt32, ReduceOp::kSum, 1, at, at,
                           shard_boundaries(4 * setting_.count, setting_.weights),
                           std::min(setting_.chunk_bytes, buffers_.slot_bytes()), is_readable},
                          number_);
    if (sum_ == nullptr) return false;
    ++sums_;
    tickets_.push_back(buffers_.ticket_of(*sum_));
    met_.assign(setting_.ranks, false);
    return true;
  }
  bool meet(size_t other, const Span& arena, const SharedSumTicket& ticket) {
    if (met_[other]) return false;
    met_[other] = true;
    sum_->join(other, buffers_.at(arena, ticket), ticket.count,
               buffers_.data_at(arena, ticket, sum_->bytes()));
    return true;
  }
  // Forgets the sum. From now on its memory belongs to the caller, who overwrites it.
  void end() {
    buffers_.end(*sum_);
    std::fill(values_, values_ + setting_.count, -1);
    sum_ = nullptr;
  }
  // Input values, different for each rank and element. The sum of all ranks has `factor` = the sum
  // of the ranks' factors, and `ranks` = their number.
  Ints values_of(size_t factor, size_t sum, size_t ranks) const {
    Ints values(setting_.count);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int32_t>(factor * sum + ranks * 7 * i);
    }
    return values;
  }
  void cancel() {
    buffers_.cancel(*sum_);
    sum_ = nullptr;
    --sums_;
    tickets_.pop_back();
  }

  MemberSet awaited = 0;  // when it was blocked last
  bool is_blocked = false;

 private:
  const size_t number_;
  const Setting& setting_;
  const ArenaLayout layout_;
  Ints own_;
  std::vector<uint64_t> memory_;
  int32_t* values_;
  ReductionBufferPool buffers_;
  SharedSum* sum_ = nullptr;
  std::vector<SharedSumTicket> tickets_;  // of all sums
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
      CHECK(is_any);  // otherwise all ranks wait for each other
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
      if (!ranks_[number].meet(other, theirs.arena(), theirs.ticket_of(sum))) continue;
      ranks_[number].is_blocked = false;
      return true;
    }
    return false;
  }

  bool advance(size_t number) {
    Rank& rank = ranks_[number];
    const MemberSet signalled = rank.sum().advance();
    if (signalled == 0 && rank.sum().is_done()) {  // others have read its sums since
      end(number);
      return true;
    }
    if (signalled == 0) {
      rank.is_blocked = true;
      rank.awaited = rank.sum().awaited();
      return false;
    }
    rank.is_blocked = false;
    check_sleepers(number, signalled);
    if (rank.sum().is_done()) end(number);
    return true;
  }

  // A rank that was blocked, and was not signalled by this rank, is still blocked.
  void check_sleepers(size_t number, MemberSet signalled) {
    for (size_t other = 0; other < setting_.ranks; ++other) {
      Rank& sleeper = ranks_[other];
      if (!sleeper.is_blocked || sleeper.is_idle()) continue;
      const bool is_woken = (signalled >> other & 1) != 0 && (sleeper.awaited >> number & 1) != 0;
      if (is_woken) {
        sleeper.is_blocked = false;
      } else {
        CHECK(sleeper.sum().advance() == 0 && !sleeper.sum().is_done());
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
  options.caller_memory_bytes = 4 * setting.count;
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
  setting.chunk_bytes = 64 * (1 + random() % 8);
  setting.readable = static_cast<uint32_t>(random()) % (1U << setting.ranks);
  return setting;
}

void sums_are_right_in_any_order_and_no_rank_sleeps_too_long() {
  std::minstd_rand random(5);
  for (int i = 0; i < 400; ++i) {
    const Setting setting = random_setting(random);
    const auto window = static_cast<uint32_t>(1 + random() % 4);
    Host host(setting, options_of(setting, window, 64 * (1 + random() % 8)),
              static_cast<uint32_t>(random()));
    host.run();
  }
}

void a_cancelled_sum_frees_its_buffer() {
  const Setting setting{2, 1000, equal_weights(2), 256};
  const Options options = options_of(setting, 2, 256);
  Rank ranks[] = {{options, 0, setting}, {options, 1, setting}};
  CHECK(ranks[0].begin());
  CHECK_EQ(MemberSet{2}, ranks[0].sum().advance());  // given, and never read
  ranks[0].cancel();
  for (Rank& rank : ranks) CHECK(rank.begin());
  CHECK_EQ(0u, ranks[0].ticket().buffer);
  CHECK(ranks[0].ticket().count > 0);
  CHECK(ranks[0].meet(1, ranks[1].arena(), ranks[1].ticket()));
  CHECK(ranks[1].meet(0, ranks[0].arena(), ranks[0].ticket()));
  while (!ranks[0].sum().is_done() || !ranks[1].sum().is_done()) {
    CHECK((ranks[0].sum().advance() | ranks[1].sum().advance()) != 0);
  }
  for (const Rank& rank : ranks) CHECK(rank.data() == rank.values_of(3, 1, 2));
}

// Ranks at their first sum, which all have joined.
std::deque<Rank> met(const Setting& setting, const Options& options) {
  std::deque<Rank> ranks;
  for (size_t rank = 0; rank < setting.ranks; ++rank) {
    ranks.emplace_back(options, rank, setting).begin();
  }
  for (size_t rank = 0; rank < setting.ranks; ++rank) {
    for (size_t other = 0; other < setting.ranks; ++other) {
      if (other != rank) ranks[rank].meet(other, ranks[other].arena(), ranks[other].ticket());
    }
  }
  return ranks;
}

// Returns the members that a rank needs, and those that these need, without the ranks that wait
// themselves: what LateWatch::stopping() finds from the answers of all ranks that wait.
MemberSet stopping(const std::deque<Rank>& ranks, const std::vector<MemberSet>& needs,
                   size_t rank) {
  MemberSet members = needs[rank];
  for (size_t other = 0; other < ranks.size(); ++other) {
    if ((needs[rank] >> other & 1) != 0) members |= needs[other];
  }
  for (size_t other = 0; other < ranks.size(); ++other) {
    if (needs[other] != 0) members &= ~(MemberSet{1} << other);
  }
  return members;
}

// The rank with number 0 stops after a random number of chunks, also when it is ahead of others.
void a_rank_that_stops_is_named_by_all_that_wait() {
  std::minstd_rand random(7);
  for (int i = 0; i < 2000; ++i) {
    const Setting setting = random_setting(random);
    const auto window = static_cast<uint32_t>(1 + random() % 4);
    std::deque<Rank> ranks = met(setting, options_of(setting, window, 64));
    for (auto left = random() % 200; left > 0; --left) {
      ranks[random() % ranks.size()].sum().advance();
    }
    for (bool is_any = true; is_any;) {
      is_any = false;
      for (size_t rank = 1; rank < ranks.size(); ++rank) is_any |= ranks[rank].sum().advance() != 0;
    }
    std::vector<MemberSet> needs(ranks.size());
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      for (size_t other = 0; other < ranks.size(); ++other) {
        if (other == rank || !ranks[rank].sum().needs(other)) continue;
        needs[rank] |= MemberSet{1} << other;
      }
      CHECK_EQ(ranks[rank].sum().is_done(), needs[rank] == 0);
    }
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      if (needs[rank] != 0) CHECK_EQ(MemberSet{1}, stopping(ranks, needs, rank));
    }
  }
}

// After a rank was blocked, and before it sleeps, the other one may do the chunk that it waits for,
// without a signal.
void a_blocked_rank_expects_signals_of_chunks_that_have_come_since() {
  Setting setting{2, 100, {1, 0}, 64};  // the first rank owns the whole buffer
  std::deque<Rank> ranks = met(setting, options_of(setting, 1, 64));
  CHECK_EQ(MemberSet{0}, ranks[0].sum().advance());
  CHECK_EQ(MemberSet{2}, ranks[0].sum().awaited());
  CHECK_EQ(MemberSet{1}, ranks[1].sum().advance());
  CHECK_EQ(MemberSet{2}, ranks[0].sum().awaited());
}

// The next sum may have other members.
void an_reduction_buffer_is_in_use_until_the_last_rank_has_read_it() {
  const Setting setting{3, 48, equal_weights(3), 64};
  const Options options = options_of(setting, 1, 64);
  std::deque<Rank> ranks = met(setting, options);
  while (!ranks[0].sum().is_done() || !ranks[1].sum().is_done()) {
    const MemberSet signalled = ranks[0].sum().advance() | ranks[1].sum().advance();
    if (signalled == 0) ranks[2].sum().advance();  // only when the others need it
  }
  CHECK(!ranks[2].sum().is_done());
  ranks[0].end();
  CHECK(ranks[0].begin());
  CHECK_EQ(1u, ranks[0].ticket().buffer);
  ranks[0].cancel();
  while (!ranks[2].sum().is_done()) ranks[2].sum().advance();
  CHECK(ranks[0].begin());
  CHECK_EQ(0u, ranks[0].ticket().buffer);
}

// The caller of the first rank may overwrite its memory as soon as its sum is done.
void a_rank_with_readable_data_is_done_when_all_have_read_its_sums() {
  const Setting setting{2, 64, {1, 0}, 64, 1};  // the first rank owns the whole buffer
  std::deque<Rank> ranks = met(setting, options_of(setting, 4, 64));
  while ((ranks[0].sum().advance() | ranks[1].sum().advance()) != 0) {
    CHECK_EQ(ranks[1].sum().is_done(), ranks[0].sum().is_done());
    CHECK_EQ(ranks[0].sum().needs(1), !ranks[0].sum().is_done());
  }
  CHECK(ranks[0].sum().is_done());
  CHECK(ranks[1].data() == ranks[1].values_of(3, 1, 2));
  CHECK(ranks[0].begin());  // before the engine has noticed the end of the first sum
  CHECK_EQ(1u, ranks[0].ticket().buffer);
}

void data_outside_of_the_memory_of_callers_are_refused() {
  const Setting setting{2, 64, equal_weights(2), 64, 3};
  std::deque<Rank> ranks = met(setting, options_of(setting, 1, 64));
  SharedSumTicket ticket = ranks[1].ticket();
  CHECK_EQ(uint64_t{0}, ticket.data_at);
  const ReductionBufferPool buffers(ArenaLayout(options_of(setting, 1, 64)), ranks[0].arena());
  for (const uint64_t wrong : {uint64_t{1}, uint64_t{256}, UINT64_MAX - 1}) {
    ticket.data_at = wrong;
    try {
      buffers.data_at(ranks[1].arena(), ticket, 256);
      CHECK(false);
    } catch (const PeerError& error) {
      CHECK_CONTAINS("outside of its shared memory", error.what());
    }
  }
}

// Half of the ranks have their data in shared memory. Each overwrites its memory after each sum.
void engines_sum_data_in_shared_memory_where_they_lie() {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 300'000;
  for (const testing::Network network : {testing::Network::kShared, testing::Network::kLocal}) {
    testing::Cluster cluster(kRanks, network, [](Options& options) {
      options.tuning.one_shot_bytes = options.tuning.single_owner_bytes = 0;
      options.caller_memory_bytes = 4 * kCount;
    });
    std::vector<float> elsewhere(kCount);
    for (int round = 0; round < 10; ++round) {
      std::vector<testing::Result> results;
      std::vector<float*> data;
      for (int rank = 0; rank < kRanks; ++rank) {
        const Span memory = cluster[rank].shared_memory().span;
        CHECK_EQ(4 * kCount, memory.bytes);
        data.push_back(rank == 1 ? elsewhere.data() : static_cast<float*>(memory.data));
        std::fill(data.back(), data.back() + kCount, static_cast<float>(rank + round));
        Operation operation = testing::sum_of(elsewhere);
        operation.inputs = operation.outputs = {{data.back(), 4 * kCount}};
        results.push_back(testing::start(cluster[rank], 0, operation));
      }
      for (int rank = 0; rank < kRanks; ++rank) {
        CHECK(testing::text_of(results[static_cast<size_t>(rank)]).empty());
        float* const at = data[static_cast<size_t>(rank)];
        const auto sum = static_cast<float>(3 + 3 * round);
        CHECK(std::all_of(at, at + kCount, [&](float each) { return each == sum; }));
        std::fill(at, at + kCount, -1.0F);
      }
    }
  }
}

// A rank begins further sums while earlier ones wait for others to read their results.
void several_sums_in_shared_memory_overlap() {
  constexpr size_t kRanks = 3;
  constexpr size_t kPlaces = 4;
  constexpr size_t kCount = 20'000;
  testing::Cluster cluster(kRanks, testing::Network::kLocal, [](Options& options) {
    options.tuning.one_shot_bytes = options.tuning.single_owner_bytes = 0;
    options.caller_memory_bytes = kPlaces * 4 * kCount;
  });
  std::deque<std::vector<testing::Result>> running;
  for (size_t number = 0; number < 300; ++number) {
    if (running.size() == kPlaces) {
      for (testing::Result& result : running.front()) CHECK(testing::text_of(result).empty());
      running.pop_front();
    }
    std::vector<testing::Result> results;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      Engine& engine = cluster[static_cast<int>(rank)];
      auto* const memory = static_cast<float*>(engine.shared_memory().span.data);
      float* const place = memory + number % kPlaces * kCount;
      const auto last = static_cast<float>(3 + 3 * (number - kPlaces));
      if (number >= kPlaces) CHECK(place[0] == last && place[kCount - 1] == last);
      std::fill(place, place + kCount, static_cast<float>(rank + number));
      std::vector<float> none;
      Operation operation = testing::sum_of(none);
      operation.inputs = operation.outputs = {{place, 4 * kCount}};
      results.push_back(testing::start(engine, 0, operation));
    }
    running.push_back(std::move(results));
  }
  for (auto& results : running) {
    for (testing::Result& result : results) CHECK(testing::text_of(result).empty());
  }
}

void shared_memory_outlives_its_engine() {
  SharedMemory memory;
  {
    testing::Cluster cluster(2, testing::Network::kLocal,
                             [](Options& options) { options.caller_memory_bytes = 5000; });
    memory = cluster[0].shared_memory();
  }
  CHECK_EQ(uintptr_t{0}, reinterpret_cast<uintptr_t>(memory.span.data) % 4096);
  std::memset(memory.span.data, 1, memory.span.bytes);
  CHECK_EQ(size_t{5000}, memory.span.bytes);
}

void an_reduction_buffer_that_does_not_exist_is_refused() {
  const Setting setting{2, 10, equal_weights(2), 64};
  const Options options = options_of(setting, 1, 64);
  Rank rank(options, 0, setting);
  const ArenaLayout layout(options);
  const ReductionBufferPool buffers(layout, rank.arena());
  try {
    buffers.at(rank.arena(), {static_cast<uint32_t>(layout.num_reduction_buffers), 0});
    CHECK(false);
  } catch (const PeerError& error) {
    CHECK_CONTAINS("chose its reduction buffer 3 for a sum, but has no such buffer", error.what());
  }
}

// There are more sums at once than reduction buffers, and each rank begins them in another order:
// for one sum, some ranks have a reduction buffer left and others have none, even if most ranks own
// no shard of it.
void sums_without_a_free_reduction_buffer_follow_a_plan() {
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

// The ranks send more frames than fit in the rings. Afterwards no rank has anything to do.
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
  CHECK(seconds < 0.3);  // a thread that spins without end takes 0.6
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(sums_are_right_in_any_order_and_no_rank_sleeps_too_long);
  RUN(a_cancelled_sum_frees_its_buffer);
  RUN(a_rank_that_stops_is_named_by_all_that_wait);
  RUN(a_blocked_rank_expects_signals_of_chunks_that_have_come_since);
  RUN(an_reduction_buffer_is_in_use_until_the_last_rank_has_read_it);
  RUN(a_rank_with_readable_data_is_done_when_all_have_read_its_sums);
  RUN(data_outside_of_the_memory_of_callers_are_refused);
  RUN(an_reduction_buffer_that_does_not_exist_is_refused);
  RUN(engines_sum_data_in_shared_memory_where_they_lie);
  RUN(several_sums_in_shared_memory_overlap);
  RUN(shared_memory_outlives_its_engine);
  RUN(sums_without_a_free_reduction_buffer_follow_a_plan);
  RUN(engines_rest_after_a_burst);
}
