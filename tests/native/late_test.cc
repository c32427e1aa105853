// SPDX-License-Identifier: Apache-2.0
// Tests that ranks which do not come to a collective are named soon, in one line, with their last
// operations; and of the history of a rank.
#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "cluster.h"
#include "engine/fault_messages.h"
#include "engine/late_watch.h"
#include "messaging/late_report.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::text_of;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};
constexpr milliseconds kDeadline{20'000};
using Data = std::vector<std::vector<float>>;

Data data_of(int size, size_t count) {
  return Data(static_cast<size_t>(size), std::vector<float>(count, 1));
}

Cluster::Tweak after(milliseconds late, std::vector<int> hosts = {},
                     milliseconds again = milliseconds(600'000)) {
  return [=](Options& options) {
    options.late_after = late;
    options.late_again = again;
    options.hosts = hosts;
  };
}

std::vector<Result> start_sums(Cluster& cluster, Data& data, const std::vector<int>& ranks,
                               milliseconds timeout = milliseconds(60'000), uint32_t group = 0) {
  std::vector<Result> results;
  for (const int rank : ranks) {
    Operation operation = sum_of(data[static_cast<size_t>(rank)]);
    operation.timeout = timeout;
    results.push_back(start(cluster[rank], group, std::move(operation)));
  }
  return results;
}

void run_all(Cluster& cluster, size_t count) {
  Data data = data_of(cluster.size(), count);
  std::vector<int> all;
  for (int rank = 0; rank < cluster.size(); ++rank) all.push_back(rank);
  for (Result& result : start_sums(cluster, data, all)) CHECK(text_of(result).empty());
}

std::string wait_for_log(const Cluster& cluster, const std::string& text) {
  const auto end = Clock::now() + kDeadline;
  while (Clock::now() < end && cluster.log().find(text) == std::string::npos) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return cluster.log();
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void a_late_rank_is_named_with_its_last_operation() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network, after(milliseconds(200)));
    run_all(cluster, 100);
    Data data = data_of(3, 5000);
    auto results = start_sums(cluster, data, {0, 2});
    const std::string log = wait_for_log(cluster, "not come");
    CHECK_CONTAINS("operation 1 of group 0, all_reduce(sum, float32, 5000): rank 1 on algo-2", log);
    CHECK_CONTAINS("(last operation: operation 0 of group 0, all_reduce of 400 bytes of float32, ",
                   log);
    CHECK_CONTAINS("has not come after 0 s", log);
    for (Result& result : start_sums(cluster, data, {1})) CHECK(text_of(result).empty());
    for (Result& result : results) CHECK(text_of(result).empty());
    CHECK_EQ(size_t{1}, count_of(cluster.log(), "not come"));
  }
}

// Ranks 3, 4 and 5 are on a host of their own; their leader knows the late ranks there.
void one_line_names_the_late_ranks_of_all_hosts() {
  Cluster cluster(6, Network::kTcp, after(milliseconds(3000), {0, 0, 0, 1, 1, 1}));
  Data data = data_of(6, 5000);
  auto results = start_sums(cluster, data, {0, 1, 3, 4});
  const std::string log = wait_for_log(cluster, "not come");
  CHECK_CONTAINS(
      ": rank 2 on algo-3 (has called no collective yet), rank 5 on algo-6 (has called no "
      "collective yet) have not come after 3 s",
      log);
  for (Result& result : start_sums(cluster, data, {2, 5})) CHECK(text_of(result).empty());
  for (Result& result : results) CHECK(text_of(result).empty());
}

void a_late_rank_0_is_named_by_another_rank() {
  Cluster cluster(3, Network::kTcp, after(milliseconds(200)));
  Data data = data_of(3, 50);
  auto results = start_sums(cluster, data, {1, 2});
  CHECK_CONTAINS("rank 0 on algo-1 (has called no collective yet) has not come",
                 wait_for_log(cluster, "not come"));
  for (Result& result : start_sums(cluster, data, {0})) CHECK(text_of(result).empty());
  for (Result& result : results) CHECK(text_of(result).empty());
}

void a_group_without_rank_0_logs_its_own_line() {
  Cluster cluster(3, Network::kTcp, after(milliseconds(200)));
  for (const int rank : {1, 2}) cluster[rank].add_group(7, {1, 2});
  Data data = data_of(3, 50);
  auto results = start_sums(cluster, data, {1}, milliseconds(60'000), 7);
  CHECK_CONTAINS("operation 0 of group 7, all_reduce(sum, float32, 50): rank 2 on algo-3",
                 wait_for_log(cluster, "not come"));
  for (Result& result : start_sums(cluster, data, {2}, milliseconds(60'000), 7)) {
    CHECK(text_of(result).empty());
  }
  for (Result& result : results) CHECK(text_of(result).empty());
}

void the_line_is_repeated_while_the_rank_is_late() {
  Cluster cluster(2, Network::kMemory, after(milliseconds(100), {}, milliseconds(300)));
  Data data = data_of(2, 50);
  auto results = start_sums(cluster, data, {0});
  const auto end = Clock::now() + kDeadline;
  while (count_of(cluster.log(), "not come") < 3 && Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(count_of(cluster.log(), "not come") >= 3);
  for (Result& result : start_sums(cluster, data, {1})) CHECK(text_of(result).empty());
  for (Result& result : results) CHECK(text_of(result).empty());
}

// More ranks than one line names.
void a_line_has_a_bounded_length() {
  constexpr int kSize = 14;
  Cluster cluster(kSize, Network::kMemory, after(milliseconds(300)));
  Data data = data_of(kSize, 50'000);
  auto results = start_sums(cluster, data, {0, 1});
  const std::string log = wait_for_log(cluster, "not come");
  CHECK_CONTAINS("rank 9 on algo-10 and 4 more have not come", log);
  CHECK_EQ(size_t{4}, count_of(log, "(has called no collective yet)"));
  std::vector<int> others;
  for (int rank = 2; rank < kSize; ++rank) others.push_back(rank);
  for (Result& result : start_sums(cluster, data, others)) CHECK(text_of(result).empty());
  for (Result& result : results) CHECK(text_of(result).empty());
}

void nothing_is_logged_about_operations_that_end_in_time() {
  Cluster cluster(3, Network::kLocal, after(milliseconds(1500)));
  const auto end = Clock::now() + milliseconds(1800);
  while (Clock::now() < end) run_all(cluster, 1000);
  CHECK(cluster.log().empty());
}

void a_timeout_has_the_late_ranks_as_data() {
  Cluster cluster(3, Network::kMemory);
  run_all(cluster, 100);
  Data data = data_of(3, 5000);
  for (Result& result : start_sums(cluster, data, {0, 2}, milliseconds(200))) {
    const std::exception_ptr error = result.get();
    CHECK_CONTAINS("which waits for rank 1 on algo-2 (last operation: operation 0 of group 0",
                   text_of(error));
    try {
      std::rethrow_exception(error);
    } catch (const Error& each) {
      CHECK_CONTAINS(
          "[{\"rank\":1,\"has_come\":false,\"last_operation\":{\"kind\":\"all_reduce\",\"dtype\":"
          "\"float32\",\"bytes\":400,\"group\":0,\"sequence\":0,\"seconds_ago\":0}}]",
          each.fault()->details);
    }
  }
}

// Ranks that have come, but whose data are missing, may themselves wait for the one that has not.
void a_timeout_blames_the_lowest_rank_that_has_not_come() {
  Options options;
  options.size = 4;
  const RankNames names(options);
  const Submission submission;
  LateRanks late = {{1, {true, std::nullopt}}, {2, {false, std::nullopt}}, {3, {false, {}}}};
  CHECK_EQ(2, operation_timed_out(names, submission, late).culprit);
  late = {{1, {true, std::nullopt}}, {3, {true, std::nullopt}}};
  CHECK_EQ(1, operation_timed_out(names, submission, late).culprit);
  CHECK_EQ(0, operation_timed_out(names, submission, {}).culprit);
}

// Rank 0 waits for 1, 2 and 4; ranks 1 and 4 answer that they wait as well.
void ranks_that_wait_themselves_do_not_stop_an_operation() {
  Options options;
  options.size = 5;
  const RankNames names(options);
  LateWatch watch(options, names);
  const OperationId id;
  const LateRank posted{true, std::nullopt};
  const LateRanks late = {{1, posted}, {2, posted}, {4, posted}};
  CHECK(!watch.add_answer(id, {{}, {}, {{2, posted}}}, 1));  // nobody has asked
  CHECK_EQ(size_t{3}, watch.stopping(id, late).size());

  watch.begin_asking(id);
  CHECK(watch.add_answer(id, {{}, {}, {{0, posted}, {2, posted}}}, 1));
  CHECK(watch.add_answer(id, {{}, {}, {{3, {false, std::nullopt}}}}, 4));
  const LateRanks stopping = watch.stopping(id, late);
  CHECK_EQ(size_t{2}, stopping.size());
  CHECK(stopping.at(2).has_come);
  CHECK(!stopping.at(3).has_come);  // known from an answer alone
  CHECK_EQ(3, operation_timed_out(names, Submission{}, stopping).culprit);

  CHECK(watch.add_answer(id, {{}, {}, {{2, posted}}}, 3));
  CHECK(watch.add_answer(id, {{}, {}, {{1, posted}}}, 2));
  CHECK_EQ(size_t{3}, watch.stopping(id, late).size());  // all wait
  watch.end_asking(id);
  CHECK(!watch.add_answer(id, {{}, {}, {{2, posted}}}, 1));
}

void the_history_has_the_last_thousand_operations() {
  Cluster cluster(2, Network::kMemory);
  for (int i = 0; i < 1003; ++i) run_all(cluster, 1);
  Data data = data_of(2, 8);
  auto results = start_sums(cluster, data, {0});
  const auto end = Clock::now() + kDeadline;
  std::string history;
  do {
    history = cluster[0].history("a test");
  } while (history.find("\"submitted\"}") == std::string::npos && Clock::now() < end);
  CHECK_EQ(size_t{1000}, count_of(history, "\"number\":"));
  CHECK_EQ(size_t{999}, count_of(history, "\"state\":\"ended\""));
  CHECK(history.find("\"number\":4,") == std::string::npos);
  CHECK_CONTAINS("{\"number\":5,\"group\":0,\"kind\":\"all_reduce\",\"sequence\":4,", history);
  CHECK_CONTAINS(
      "\"number\":1004,\"group\":0,\"kind\":\"all_reduce\",\"sequence\":1003,\"part\":0,"
      "\"dtype\":\"float32\",\"bytes\":32,\"op\":\"sum\",",
      history);
  CHECK_CONTAINS("\"groups\":{\"0\":[0,1]}", history);
  CHECK_CONTAINS("\"reason\":\"a test\"", history);
  cluster[1].abort("enough");
  CHECK_CONTAINS("enough", text_of(results[0]));
  CHECK_CONTAINS("\"state\":\"failed\"", cluster[0].history("a test"));
  CHECK_CONTAINS("\"fault\":{\"kind\":\"aborted\",\"culprit\":1,", cluster[0].history("a test"));
}

void the_history_has_messages() {
  Cluster cluster(2, Network::kTcp);
  std::vector<float> sent(3, 2), received(3);
  Operation send;
  send.kind = Collective::kSend;
  send.dtype = Dtype::kFloat32;
  send.peer = 1;
  send.tag = 9;
  send.inputs = {testing::span(sent)};
  Operation receive = send;
  receive.kind = Collective::kReceive;
  receive.peer = kAnyRank;
  receive.inputs = {};
  receive.outputs = {testing::span(received)};
  auto first = start(cluster[0], 0, std::move(send));
  auto second = start(cluster[1], 0, std::move(receive));
  CHECK(text_of(first).empty());
  CHECK(text_of(second).empty());
  CHECK_CONTAINS(
      "\"kind\":\"send\",\"sequence\":0,\"part\":0,\"dtype\":\"float32\",\"bytes\":12,"
      "\"peer\":1,\"tag\":9,",
      cluster[0].history(""));
  CHECK_CONTAINS("\"kind\":\"receive\",", cluster[1].history(""));
  CHECK_CONTAINS("\"peer\":null,\"tag\":9,", cluster[1].history(""));
}

void a_failure_is_announced_once() {
  std::atomic<int> calls{0};
  Cluster cluster(2, Network::kMemory,
                  [&](Options& options) { options.on_failure = [&calls] { ++calls; }; });
  run_all(cluster, 10);
  cluster[0].abort("enough");
  const auto end = Clock::now() + kDeadline;
  while (calls < 2 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  cluster[1].abort("more than enough");
  cluster.end(0);
  cluster.end(1);
  CHECK_EQ(2, calls.load());
}

void a_report_survives_the_wire_and_others_are_refused() {
  LateReport report;
  report.descriptor.kind = Collective::kAllGather;
  report.waited = milliseconds(12'345);
  report.ranks[3] = {true, std::nullopt};
  report.ranks[5] = {false, LastOperation{7, 1ULL << 40, Collective::kReduce, Dtype::kInt16, 99,
                                          milliseconds(15)}};
  const std::string text = encode(report);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  const LateReport copy = decode_late_report(bytes, 6);
  CHECK(text == encode(copy));
  CHECK_CONTAINS("operation 1099511627776 of group 7, reduce of 99 bytes of int16, 0 s ago",
                 text_of(*copy.ranks.at(5).last));
  const auto refusal = [](std::vector<uint8_t> changed, int num_ranks) {
    try {
      decode_late_report(changed, num_ranks);
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_CONTAINS("rank 5, which does not exist", refusal(bytes, 5));
  CHECK_CONTAINS("truncated", refusal({bytes.begin(), bytes.end() - 1}, 6));
  std::vector<uint8_t> changed = bytes;
  changed[kLatePrefixBytes + kLateRankBytes + 5] = 99;
  CHECK_CONTAINS("does not exist", refusal(changed, 6));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_report_survives_the_wire_and_others_are_refused);
  RUN(a_late_rank_is_named_with_its_last_operation);
  RUN(one_line_names_the_late_ranks_of_all_hosts);
  RUN(a_late_rank_0_is_named_by_another_rank);
  RUN(a_group_without_rank_0_logs_its_own_line);
  RUN(the_line_is_repeated_while_the_rank_is_late);
  RUN(a_line_has_a_bounded_length);
  RUN(nothing_is_logged_about_operations_that_end_in_time);
  RUN(a_timeout_has_the_late_ranks_as_data);
  RUN(a_timeout_blames_the_lowest_rank_that_has_not_come);
  RUN(ranks_that_wait_themselves_do_not_stop_an_operation);
  RUN(the_history_has_the_last_thousand_operations);
  RUN(the_history_has_messages);
  RUN(a_failure_is_announced_once);
}
