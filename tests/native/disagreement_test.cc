// SPDX-License-Identifier: Apache-2.0
// Tests that ranks which call different things raise an error for that call, and that later calls
// work. Each call's memory is freed as soon as the call ends, so that the address sanitizer finds
// any later use.
#include <chrono>
#include <functional>
#include <iterator>
#include <random>
#include <thread>
#include <utility>

#include "check.h"
#include "cluster.h"
#include "collectives/agreement.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::span;
using testing::start;
using testing::sum_of;
using testing::text_of;
using Floats = std::vector<float>;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};

// A call of one rank.
struct Call {
  Collective kind = Collective::kAllReduce;
  size_t count = 10;  // elements of one rank's part
  ReduceOp op = ReduceOp::kSum;
  Dtype dtype = Dtype::kFloat32;
  int root = 0;
};

constexpr Collective kRooted[] = {Collective::kBroadcast, Collective::kReduce, Collective::kGather,
                                  Collective::kScatter};

// Starts a call, whose memory is freed when it ends. check: called with the result, unless it
// fails.
Result start_call(Engine& engine, const Call& call,
                  std::function<void(const Floats&)> check = nullptr,
                  const std::shared_ptr<CallNumber>& number = nullptr) {
  const auto ranks = static_cast<size_t>(engine.size());
  const float value = static_cast<float>(engine.rank() + 1);
  auto input = std::make_shared<Floats>(call.count * ranks, value);
  auto output = std::make_shared<Floats>(call.count * ranks, value);
  const Span part{input->data(), call.count * sizeof(float)};
  const Span out_part{output->data(), call.count * sizeof(float)};
  Operation operation;
  operation.kind = call.kind;
  operation.dtype = call.dtype;
  operation.op = call.op;
  operation.root = call.root;
  operation.call = number;
  operation.timeout = std::chrono::seconds(60);
  switch (call.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      operation.inputs = {out_part};
      operation.outputs = {out_part};
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      operation.inputs = {part};
      operation.outputs = {span(*output)};
      break;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      operation.inputs = {span(*input)};
      operation.outputs = {out_part};
      break;
    case Collective::kAllToAll:
      operation.inputs = {span(*input)};
      operation.outputs = {span(*output)};
      break;
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kReceive:
      break;
  }
  auto promise = std::make_shared<std::promise<std::exception_ptr>>();
  Result result = promise->get_future();
  operation.done = [promise, input = std::move(input), output = std::move(output),
                    check = std::move(check)](std::exception_ptr error) mutable {
    if (!error && check) check(*output);
    input.reset();
    output.reset();
    promise->set_value(error);
  };
  engine.submit(0, std::move(operation));
  return result;
}

void check_sum(Cluster& cluster, size_t count) {
  std::vector<Result> results;
  float expected = 0;
  for (int rank = 0; rank < cluster.size(); ++rank) expected += static_cast<float>(rank + 1);
  for (int rank = 0; rank < cluster.size(); ++rank) {
    results.push_back(
        start_call(cluster[rank], {Collective::kAllReduce, count}, [=](const Floats& sum) {
          CHECK_EQ(expected, sum[0]);
          CHECK_EQ(expected, sum[count - 1]);
        }));
  }
  for (Result& result : results) CHECK(text_of(result).empty());
}

using Ways = std::vector<std::pair<size_t, size_t>>;  // one_shot_bytes, single_owner_bytes

Cluster::Tweak tuned(size_t one_shot, size_t single_owner, std::vector<int> hosts = {}) {
  return [=](Options& options) {
    options.tuning.one_shot_bytes = one_shot;
    options.tuning.single_owner_bytes = single_owner;
    options.tuning.chunk_bytes = 64 << 10;
    options.tuning.lanes = 2;
    options.max_lanes = 2;
    options.hosts = hosts;
  };
}

// However sums are made: in one step, by one owner, in shards.
const Ways kWays = {{1 << 20, 1 << 20}, {0, 1 << 20}, {0, 0}};

const std::vector<Call> kOthers = {
    {Collective::kAllReduce, 11},
    {Collective::kAllReduce, 100'001},
    {Collective::kAllReduce, 10, ReduceOp::kMax},
    {Collective::kAllReduce, 10, ReduceOp::kSum, Dtype::kInt32},
    {Collective::kBroadcast, 10},
    {Collective::kReduce, 10, ReduceOp::kSum, Dtype::kFloat32, 1},
    {Collective::kAllGather, 10},
    {Collective::kReduceScatter, 10},
    {Collective::kAllToAll, 10},
    {Collective::kBarrier},
};

void every_rank_raises_and_the_next_call_works() {
  for (const Network network : kNetworks) {
    for (const auto& [one_shot, single_owner] : kWays) {
      Cluster cluster(3, network, tuned(one_shot, single_owner));
      check_sum(cluster, 10);
      for (const size_t count : {size_t{10}, size_t{50'000}}) {
        for (const Call& other : kOthers) {
          std::vector<Result> results;
          for (int rank = 0; rank < 3; ++rank) {
            const Call usual{Collective::kAllReduce, count};
            results.push_back(start_call(cluster[rank], rank == 2 ? other : usual));
          }
          for (Result& result : results) {
            const std::string text = text_of(result);
            CHECK_CONTAINS("UsageError: rank ", text);
            CHECK_CONTAINS(std::string("rank 2 on algo-3 called ") + name_of(other.kind), text);
            CHECK_CONTAINS("called all_reduce(sum, float32, " + std::to_string(count) + ")", text);
          }
          check_sum(cluster, count);
        }
      }
      for (int rank = 0; rank < 3; ++rank) CHECK(!cluster[rank].failure());
    }
  }
}

// Returns the calls of a rooted collective in which one rank differs: in its root, whichever rank
// that is, or in its length.
std::vector<std::vector<Call>> rooted_programs(Collective kind, int size, size_t count) {
  std::vector<std::vector<Call>> programs;
  const Call usual{kind, count, ReduceOp::kSum, Dtype::kFloat32, 1};
  for (const int other : {0, 1, size - 1}) {
    for (const int root : {0, 1, 2 % size}) {
      programs.emplace_back(static_cast<size_t>(size), usual);
      Call& call = programs.back()[static_cast<size_t>(other)];
      call.root = root;
      if (root == usual.root) ++call.count;
    }
  }
  return programs;
}

// Also a rank that agrees with the root raises, and so does the root.
void every_rank_of_a_rooted_call_raises() {
  constexpr size_t kShort = 10;
  constexpr size_t kLong = 50'000;
  struct Case {
    Network network;
    int size;
    std::vector<size_t> counts;
  };
  const std::vector<Case> cases = {
      {Network::kMemory, 2, {kShort}},
      {Network::kMemory, 4, {0, kShort, kLong}},
      {Network::kMemory, kMaxSignallingRanks + 1, {kShort}},
      {Network::kShared, 4, {kShort}},
      {Network::kLocal, 4, {kLong}},
      {Network::kTcp, 4, {0, kShort, kLong}},
  };
  for (const auto& [network, size, counts] : cases) {
    std::vector<int> hosts;
    if (network == Network::kTcp) hosts = {0, 0, 1, 1};
    Cluster cluster(size, network, tuned(0, 0, hosts));
    for (const Collective kind : kRooted) {
      for (const size_t count : counts) {
        for (const std::vector<Call>& calls : rooted_programs(kind, size, count)) {
          std::vector<Result> results;
          for (int rank = 0; rank < size; ++rank) {
            results.push_back(start_call(cluster[rank], calls[static_cast<size_t>(rank)]));
          }
          for (Result& result : results) CHECK_CONTAINS("UsageError: rank ", text_of(result));
        }
      }
    }
    check_sum(cluster, kLong);
    for (int rank = 0; rank < size; ++rank) CHECK(!cluster[rank].failure());
  }
}

// The last error is that of the last operation only.
void the_error_is_forgotten_when_an_operation_succeeds() {
  Cluster cluster(2);
  Result first = start_call(cluster[0], {Collective::kAllReduce, 4});
  Result second = start_call(cluster[1], {Collective::kAllReduce, 5});
  const std::string text = text_of(first);
  text_of(second);
  CHECK(text == text_of(cluster[0].last_error()));
  check_sum(cluster, 4);
  CHECK(!cluster[0].last_error());
}

// Two ranks disagree, and the third one calls later what one of them called.
void a_rank_that_comes_later_raises_too() {
  for (const Network network : kNetworks) {
    for (const size_t count : {size_t{10}, size_t{50'000}}) {
      Cluster cluster(3, network);
      check_sum(cluster, 10);
      for (int late = 0; late < 3; ++late) {
        std::vector<Result> early;
        for (int rank = 0; rank < 3; ++rank) {
          if (rank == late) continue;
          const size_t own = rank == (late + 1) % 3 ? count : count + 1;
          early.push_back(start_call(cluster[rank], {Collective::kAllReduce, own}));
        }
        for (Result& result : early) CHECK_CONTAINS("UsageError", text_of(result));
        Result last = start_call(cluster[late], {Collective::kAllReduce, count});
        const std::string text = text_of(last);
        CHECK_CONTAINS("called all_reduce(sum, float32, " + std::to_string(count) + ")", text);
        CHECK_CONTAINS("called all_reduce(sum, float32, " + std::to_string(count + 1) + ")", text);
        check_sum(cluster, count);
      }
    }
  }
}

// Ranks that disagree use as much memory for eager messages as others, however often they do.
void many_disagreements_in_a_row() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network, tuned(1 << 20, 1 << 20));
    check_sum(cluster, 10);
    for (int round = 0; round < 200; ++round) {
      const size_t count = 4000 - static_cast<size_t>(round % 2);
      Result first = start_call(cluster[0], {Collective::kAllReduce, count});
      Result second = start_call(cluster[1], {Collective::kAllReduce, 7999 - count});
      CHECK_CONTAINS("UsageError", text_of(first));
      CHECK_CONTAINS("UsageError", text_of(second));
    }
    check_sum(cluster, 4000);
  }
}

// Starts the operations of one call.
std::vector<Result> start_parts(Engine& engine, const std::vector<size_t>& counts) {
  auto number = std::make_shared<CallNumber>();
  for (const size_t count : counts) number->call_bytes += count * sizeof(float);
  std::vector<Result> results;
  for (const size_t count : counts) {
    results.push_back(start_call(engine, {Collective::kAllReduce, count}, nullptr, number));
  }
  return results;
}

// A call of several operations has one number, whichever number of operations the others have.
void calls_of_different_numbers_of_operations() {
  const std::vector<std::pair<std::vector<size_t>, std::vector<size_t>>> calls = {
      {{1000, 1000, 1000}, {1000, 1000}},         {{1000, 1000}, {1000, 1000, 1000, 1000, 500}},
      {{1000, 50'000}, {1000, 50'001}},           {{50'000, 1000}, {50'000, 999}},
      {{50'000, 50'000, 7}, {50'000, 50'000, 8}}, {{1000, 0, 5}, {1000, 5, 0}},
  };
  for (const Network network : kNetworks) {
    Cluster cluster(3, network, tuned(0, 0));
    for (const auto& [usual, other] : calls) {
      std::vector<std::vector<Result>> results;
      for (int rank = 0; rank < 3; ++rank) {
        results.push_back(start_parts(cluster[rank], rank == 1 ? other : usual));
      }
      for (std::vector<Result>& of_rank : results) {
        std::string text;
        for (Result& result : of_rank) text += text_of(result);
        CHECK_CONTAINS("UsageError: rank ", text);
        CHECK_CONTAINS("rank 1 on algo-2 called all_reduce", text);
      }
      check_sum(cluster, 50'000);
    }
  }
}

void a_message_that_does_not_fit_ends_alone() {
  for (const Network network : kNetworks) {
    for (const bool sends_first : {true, false}) {
      for (const int peer : {0, kAnyRank}) {
        Cluster cluster(2, network);
        check_sum(cluster, 10);
        for (const size_t sent : {size_t{5}, size_t{100'000}, size_t{6}}) {
          auto values = std::make_shared<Floats>(sent, 7);
          auto place = std::make_shared<Floats>(6);
          Operation send;
          send.kind = Collective::kSend;
          send.dtype = Dtype::kFloat32;
          send.peer = 1;
          send.inputs = {span(*values)};
          Operation receive = send;
          receive.kind = Collective::kReceive;
          receive.peer = peer;
          receive.inputs = {};
          receive.outputs = {span(*place)};
          std::vector<Result> results;
          for (const bool is_send : {sends_first, !sends_first}) {
            results.push_back(start(cluster[is_send ? 0 : 1], 0, is_send ? send : receive));
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
          for (Result& result : results) {
            const std::string text = text_of(result);
            CHECK_EQ(sent == 6, text.empty());
            if (sent == 6) continue;
            CHECK_CONTAINS("rank 0 on algo-1 called send(float32, " + std::to_string(sent), text);
            CHECK_CONTAINS("rank 1 on algo-2 called receive(float32, 6)", text);
          }
          if (sent == 6) CHECK_EQ(7.0f, (*place)[5]);
        }
      }
    }
  }
}

// Calls by number and rank, of which each rank starts many before the first has ended.
using Program = std::vector<std::vector<Call>>;

Program random_program(uint32_t seed, int size, int length) {
  std::minstd_rand random(seed);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() >> 8) % limit; };
  const size_t counts[] = {1, 16, 1000, 2100, 9000, 60'000};
  const Collective kinds[] = {
      Collective::kAllReduce, Collective::kAllReduce,    Collective::kAllReduce,
      Collective::kBroadcast, Collective::kReduce,       Collective::kAllGather,
      Collective::kGather,    Collective::kBarrier,      Collective::kAllToAll,
      Collective::kScatter,   Collective::kReduceScatter};
  const auto any_call = [&] {
    Call call{kinds[below(std::size(kinds))], counts[below(std::size(counts))]};
    if (call.kind == Collective::kBarrier) call.count = 1;
    call.root = static_cast<int>(below(static_cast<size_t>(size)));
    return call;
  };
  Program program;
  for (int i = 0; i < length; ++i) {
    const Call usual = any_call();
    std::vector<Call> of_ranks(static_cast<size_t>(size), usual);
    if (below(3) == 0) {
      Call& other = of_ranks[below(of_ranks.size())];
      if (below(2) == 0) other = any_call();
      if (below(2) == 0 && other.kind != Collective::kBarrier) other.count += 1 + below(3);
    }
    program.push_back(std::move(of_ranks));
  }
  return program;
}

bool is_same(const Call& a, const Call& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Collective::kBarrier) return true;
  return a.count == b.count && (!is_rooted(a.kind) || a.root == b.root);
}

void run_program(Cluster& cluster, const Program& program, uint32_t seed) {
  const int size = cluster.size();
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += static_cast<float>(rank + 1);
  std::vector<std::vector<Result>> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::minstd_rand random(seed + static_cast<uint32_t>(rank));
      for (const std::vector<Call>& calls : program) {
        const Call& own = calls[static_cast<size_t>(rank)];
        const auto check = [own, sum](const Floats& output) {
          if (own.kind == Collective::kAllReduce) CHECK_EQ(sum, output[own.count - 1]);
        };
        results[static_cast<size_t>(rank)].push_back(start_call(cluster[rank], own, check));
        if (random() % 8 == 0) results[static_cast<size_t>(rank)].back().wait();
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < program.size(); ++i) {
    const std::vector<Call>& calls = program[i];
    const bool agree = std::all_of(calls.begin(), calls.end(),
                                   [&](const Call& each) { return is_same(each, calls[0]); });
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      const std::string text = text_of(results[rank][i]);
      if (agree && !text.empty()) CHECK_CONTAINS("no error", text);
      if (!agree) CHECK(!text.empty());
      if (text.empty()) continue;
      CHECK_CONTAINS("UsageError: rank ", text);
      CHECK_CONTAINS(" as operation " + std::to_string(i) + " of group 0", text);
    }
  }
  for (int rank = 0; rank < size; ++rank) CHECK(!cluster[rank].failure());
}

// Ranks number calls alike in any order of events: a call about which they agree succeeds.
void programs_with_disagreements() {
  const std::vector<std::vector<int>> layouts = {{}, {0, 0, 1, 1}, {0, 1, 1, 2}};
  uint32_t seed = 1;
  for (const Network network : kNetworks) {
    for (const std::vector<int>& hosts : layouts) {
      for (const auto& [one_shot, single_owner] : kWays) {
        Cluster cluster(4, network, tuned(one_shot, single_owner, hosts));
        if (cluster.hub) cluster.hub->delay(std::chrono::milliseconds(1), seed);
        run_program(cluster, random_program(seed, 4, 40), seed);
        ++seed;
      }
    }
  }
}

// A bad argument on one rank alone is an error there, and takes no number: the next call of that
// rank is the one that others wait for.
void a_call_that_never_starts_takes_no_number() {
  Cluster cluster(2);
  Floats values(4);
  Operation wrong = sum_of(values);
  wrong.outputs[0].bytes = 8;
  wrong.timeout = std::chrono::seconds(1);
  wrong.done = [](const std::exception_ptr&) {};
  Result first = start_call(cluster[0], {Collective::kAllReduce, 4});
  bool is_refused = false;
  try {
    cluster[1].submit(0, wrong);
  } catch (const UsageError&) {
    is_refused = true;
  }
  CHECK(is_refused);
  Result second = start_call(cluster[1], {Collective::kAllReduce, 4});
  CHECK(text_of(first).empty());
  CHECK(text_of(second).empty());
}

void a_timeout_still_ends_the_engine() {
  Cluster cluster(2);
  Floats values(4);
  Result first = start_call(cluster[0], {Collective::kAllReduce, 4});
  Result second = start_call(cluster[1], {Collective::kAllReduce, 5});
  CHECK_CONTAINS("UsageError", text_of(first));
  CHECK_CONTAINS("UsageError", text_of(second));
  Operation lonely = sum_of(values);
  lonely.timeout = std::chrono::milliseconds(100);
  Result result = start(cluster[0], 0, std::move(lonely));
  CHECK_CONTAINS("TimeoutError", text_of(result));
  CHECK(cluster[0].failure());
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(every_rank_raises_and_the_next_call_works);
  RUN(every_rank_of_a_rooted_call_raises);
  RUN(the_error_is_forgotten_when_an_operation_succeeds);
  RUN(a_rank_that_comes_later_raises_too);
  RUN(many_disagreements_in_a_row);
  RUN(calls_of_different_numbers_of_operations);
  RUN(a_message_that_does_not_fit_ends_alone);
  RUN(programs_with_disagreements);
  RUN(a_call_that_never_starts_takes_no_number);
  RUN(a_timeout_still_ends_the_engine);
}
