// SPDX-License-Identifier: Apache-2.0
// Tests of the start of a job: many ranks connect at once, in spite of strangers, of connections
// that fail, and of limits of the machine.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "cluster.h"
#include "faulty_sockets.h"
#include "stranger.h"
#include "transport/accept_limits.h"
#include "transport/dial_schedule.h"
#include "transport/open_files.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::ConnectionFaults;
using testing::count_faulty_connections;
using testing::hello_of;
using testing::kCredentials;
using testing::Network;
using testing::Result;
using testing::set_connection_faults;
using testing::start;
using testing::Stranger;
using testing::sum_of;
using testing::text_of;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Next = DialSchedule::Next;

// Faults of connections that end with the test.
struct ScopedFaults {
  explicit ScopedFaults(const ConnectionFaults& faults) { set_connection_faults(faults); }
  ~ScopedFaults() { set_connection_faults({}); }
};

void few_dials_are_under_way_and_lanes_0_come_first() {
  DialSchedule schedule(200, std::chrono::hours(1), 0);
  const Clock::time_point now = Clock::now();
  for (int link = 399; link >= 0; --link) schedule.add(link, now);
  std::vector<int> links;
  while (const std::optional<int> link = schedule.next(now)) links.push_back(*link);
  CHECK_EQ(kMaxDialsUnderWay, links.size());
  CHECK(schedule.next_due() == Clock::time_point::max());
  while (!links.empty()) {
    CHECK(links.back() < 200 || !schedule.next(now));
    schedule.remove(links.back());
    links.pop_back();
    if (const std::optional<int> link = schedule.next(now)) links.push_back(*link);
  }
  CHECK(schedule.is_empty());
}

void a_dial_is_repeated_until_its_time_limit() {
  DialSchedule schedule(2, std::chrono::seconds(60), 0);
  Clock::time_point now = Clock::now();
  const Clock::time_point begin = now;
  schedule.add(0, now);
  int dials = 0;
  Next next = Next::kAgain;
  for (; next == Next::kAgain; ++dials) {
    CHECK(schedule.next(now) == 0);
    CHECK(schedule.deadline(0, now) <= begin + std::chrono::seconds(60));
    next = schedule.ended(0, false, now);
    if (next == Next::kAgain) now = schedule.next_due();
  }
  CHECK(next == Next::kTooLate);
  CHECK(now - begin >= std::chrono::seconds(60));
  CHECK(dials > 40 && dials < 200);  // pauses grow to a second
}

// A single refusal may come from anything on the way; many in a row mean that no process listens.
void only_many_refusals_in_a_row_are_an_end() {
  DialSchedule schedule(2, std::chrono::seconds(60), 0);
  Clock::time_point now = Clock::now();
  schedule.add(1, now);
  const auto refused = [&](bool is_refused) {
    CHECK(schedule.next(now) == 1);
    const Next next = schedule.ended(1, is_refused, now);
    now = schedule.next_due();
    return next;
  };
  for (int i = 1; i < kRefusalsOfEndedPeer; ++i) CHECK(refused(true) == Next::kAgain);
  CHECK(refused(false) == Next::kAgain);
  const Clock::time_point begin = now;
  for (int i = 1; i < kRefusalsOfEndedPeer; ++i) CHECK(refused(true) == Next::kAgain);
  CHECK(now - begin < std::chrono::seconds(1));
  CHECK(refused(true) == Next::kEnded);
  CHECK(schedule.is_empty());
}

void ranks_have_places_that_strangers_cannot_take() {
  AcceptLimits limits;
  Options options;
  options.size = 100;
  options.max_lanes = 8;
  std::vector<Endpoint> ranks;
  for (int rank = 0; rank < 100; ++rank) ranks.push_back({rank < 50 ? "10.0.0.1" : "10.0.0.2", 1});
  limits.set_ranks(ranks, options);
  uint64_t number = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto loser = limits.enter(++number, "10.9.9." + std::to_string(i % 200));
    CHECK_EQ(i >= 64, loser.has_value());
    if (loser) limits.leave(*loser);
  }
  const uint64_t first = number + 1;
  for (int i = 0; i < 50 * 8; ++i) {
    CHECK(!limits.enter(++number, "10.0.0.1"));
    CHECK(!limits.enter(++number, "10.0.0.2"));
  }
  CHECK(*limits.oldest() < first);  // a stranger goes first
  for (int i = 0; i < 50; ++i) CHECK(!limits.enter(++number, "10.0.0.2"));
  CHECK(limits.enter(++number, "10.0.0.2") == first + 1);  // the one that has waited longest
}

void lanes_are_as_many_as_open_files_allow() {
  Options options;
  options.size = 101;
  options.shares_memory = false;
  CHECK_EQ(kMaxLanes, lanes_within(options, 1 << 20, 10));
  CHECK_EQ(3u, lanes_within(options, 10 + 64 + 399, 10));
  CHECK_EQ(1u, lanes_within(options, 10 + 64 + 100, 10));
  options.shares_memory = true;  // a connection and an arena for each, but no additional lanes
  CHECK_EQ(kMaxLanes, lanes_within(options, 10 + 64 + 200, 10));
  options.hosts.assign(101, 0);
  options.hosts.back() = 1;
  CHECK_EQ(2u, lanes_within(options, 10 + 64 + 198 + 2, 10));
  try {
    lanes_within(options, 100, 10);
    CHECK(false);
  } catch (const SystemError& error) {
    CHECK_EQ(EMFILE, error.error_number());
    CHECK_CONTAINS("this rank needs 273 open files", error.what());
    CHECK_CONTAINS("this process may have 100", error.what());
  }
}

// Each rank's number is added to its neighbours' in a sum.
void check_sum(Cluster& cluster, size_t count = 1000) {
  std::vector<std::vector<float>> data;
  std::vector<Result> results;
  float expected = 0;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    data.emplace_back(count, static_cast<float>(rank));
    expected += static_cast<float>(rank);
  }
  for (int rank = 0; rank < cluster.size(); ++rank) {
    results.push_back(start(cluster[rank], 0, sum_of(data[static_cast<size_t>(rank)])));
  }
  for (Result& result : results) {
    const std::string error = text_of(result);
    if (!error.empty()) CHECK_CONTAINS("no error", error);
  }
  for (const auto& each : data) CHECK_EQ(expected, each[count - 1]);
}

Fault fault_of(const Engine& engine) {
  try {
    std::rethrow_exception(engine.failure());
  } catch (const Error& error) {
    return *error.fault();
  }
}

// More ranks than there are places for strangers, all of which need longer than any crowd would be
// given.
void slow_ranks_are_no_strangers() {
  constexpr uint32_t kRanks = 100;
  Options options;
  options.size = kRanks;
  options.secret = kCredentials.secret;
  options.session = kCredentials.session;
  Engine engine(options);
  engine.join(std::vector<Endpoint>(kRanks, engine.endpoint()));
  std::vector<std::unique_ptr<Stranger>> ranks;
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<Stranger>(engine.endpoint()));
  }
  std::this_thread::sleep_for(milliseconds(600));
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    ranks[rank - 1]->greet(kCredentials, hello_of(rank, 0));
  }
  for (auto& each : ranks) CHECK(each->answer() == Stranger::Answer::kAccepted);
}

// A dialler that gives up after the proof was sent, and before it confirms, has no connection; its
// next dial has.
void a_connection_without_confirmation_is_opened_again() {
  Cluster cluster(2, Network::kTcp);
  for (int i = 0; i < 3; ++i) {
    Stranger dialler(cluster[0].endpoint());
    dialler.greet(kCredentials, hello_of(1, 0));
    CHECK(dialler.answer() == Stranger::Answer::kAccepted);
  }
  check_sum(cluster);
}

// Strangers that dial all ranks as fast as they can, and say nothing or nonsense.
class Crowd final {
 public:
  explicit Crowd(Cluster& cluster) {
    for (int rank = 0; rank < cluster.size(); ++rank) doors_.push_back(cluster[rank].endpoint());
    thread_ = std::thread([this] { run(); });
  }
  ~Crowd() {
    is_ended_ = true;
    thread_.join();
  }

 private:
  void run() {
    std::vector<std::unique_ptr<Stranger>> present;
    for (size_t i = 0; !is_ended_; ++i) {
      present.push_back(std::make_unique<Stranger>(doors_[i % doors_.size()]));
      if (i % 2 == 0) present.back()->say(std::string(128, 'x').data(), 128);
      if (present.size() > 400) present.clear();
      if (i % 8 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  }

  std::vector<Endpoint> doors_;
  std::atomic<bool> is_ended_{false};
  std::thread thread_;
};

void more_ranks_start_than_there_are_places_for_strangers() {
  Cluster cluster(80, Network::kTcp, [](Options& options) { options.log = nullptr; });
  const Crowd crowd(cluster);
  check_sum(cluster, 100);
}

// Three in ten connections are refused, reset or delayed, lane 0 and others.
void failed_connections_are_made_again() {
  const uint64_t before = count_faulty_connections();
  const ScopedFaults faults({100, 100, 100});
  Cluster cluster(12, Network::kTcp, [](Options& options) {
    for (int rank = 0; rank < options.size; ++rank) options.hosts.push_back(rank);
    options.tuning.lanes = 4;
    options.tuning.one_shot_bytes = 0;
  });
  const Crowd crowd(cluster);
  for (int round = 0; round < 5; ++round) check_sum(cluster, 300'000);
  CHECK(count_faulty_connections() > before + 20);
  CHECK(cluster.log().find("fewer lanes") == std::string::npos);
}

void a_start_ends_at_its_time_limit() {
  const ScopedFaults faults({0, 1000, 0});
  Cluster cluster(2, Network::kTcp,
                  [](Options& options) { options.start_timeout = milliseconds(1'500); });
  const auto begin = Clock::now();
  std::vector<float> values(10);
  Result result = start(cluster[1], 0, sum_of(values));
  CHECK_CONTAINS("(this rank has tried to connect for 1 s)", text_of(result));
  CHECK(Clock::now() - begin > milliseconds(1'400));
  const Fault fault = fault_of(cluster[1]);
  CHECK(fault.kind == FaultKind::kLost);
  CHECK_EQ(0, fault.culprit);
}

// A rank with another secret fails at once, and does not try until the start timeout. Its error
// says what to set; the rank that it has dialled logs which rank it claims to be.
void another_secret_is_final() {
  Cluster cluster(2, Network::kTcp, [](Options& options) {
    if (options.rank == 1) options.secret = "another secret";
  });
  const auto begin = Clock::now();
  std::vector<float> values(10);
  Result result = start(cluster[1], 0, sum_of(values));
  const std::string text = text_of(result);
  CHECK_CONTAINS("rank 0 on algo-1 does not know the job's secret", text);
  CHECK_CONTAINS("SMDIST_SECRET_FILE", text);
  CHECK(text.find("share of the data") == std::string::npos);
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
  while (cluster.log().empty() && Clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(milliseconds(5));  // rank 0 may log a moment later
  }
  CHECK_CONTAINS(", which says it is rank 1: the remote process does not know", cluster.log());
}

void set_open_files_limit(size_t soft) {
  rlimit limit{};
  CHECK_EQ(0, ::getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = soft;
  CHECK_EQ(0, ::setrlimit(RLIMIT_NOFILE, &limit));
}

// Leaves this process with no free file descriptor for the sockets of engines.
struct NoFiles {
  NoFiles() { testing::set_out_of_files(true); }
  ~NoFiles() { testing::set_out_of_files(false); }
};

void an_engine_raises_the_limit_of_open_files() {
  set_open_files_limit(256);
  const Cluster cluster(1, Network::kTcp);
  rlimit limit{};
  CHECK_EQ(0, ::getrlimit(RLIMIT_NOFILE, &limit));
  CHECK_EQ(limit.rlim_max, limit.rlim_cur);
}

void check_out_of_files(const Engine& engine, int rank) {
  const auto begin = Clock::now();
  while (!engine.failure() && Clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
  const Fault fault = fault_of(engine);
  CHECK(fault.kind == FaultKind::kSystem);
  CHECK_EQ(rank, fault.culprit);
  CHECK_CONTAINS("ulimit -Hn", fault.text);
}

void no_file_for_a_dial_is_a_fault_after_a_second() {
  Cluster cluster(2, Network::kTcp);
  const NoFiles none;
  std::vector<float> values(10);
  Result result = start(cluster[1], 0, sum_of(values));
  check_out_of_files(cluster[1], 1);
  CHECK_CONTAINS("SystemError", text_of(result));
}

void no_file_for_an_accepted_connection_is_a_fault_logged_once() {
  Cluster cluster(2, Network::kTcp);
  const NoFiles none;
  const Stranger stranger(cluster[0].endpoint());
  check_out_of_files(cluster[0], 0);
  std::this_thread::sleep_for(milliseconds(600));
  const std::string log = cluster.log();
  CHECK_EQ(1, std::count(log.begin(), log.end(), '\n'));
}

// Runs a function in a child process with a hard limit of open files, which cannot be raised again.
void in_process_with_files(size_t files, void (*function)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{files, files};
    CHECK_EQ(0, ::setrlimit(RLIMIT_NOFILE, &limit));
    function();
    ::_exit(0);
  }
  int status = 0;
  CHECK_EQ(child, ::waitpid(child, &status, 0));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Options options_of_many() {
  Options options;
  options.size = 200;
  for (int rank = 0; rank < options.size; ++rank) options.hosts.push_back(rank);
  return options;
}

void too_few_files_for_one_lane_are_an_error_before_the_first_connection() {
  in_process_with_files(128, [] {
    Engine engine(options_of_many());
    try {
      engine.join(std::vector<Endpoint>(200, engine.endpoint()));
      CHECK(false);
    } catch (const SystemError& error) {
      CHECK_EQ(EMFILE, error.error_number());
    }
  });
}

void too_few_files_for_all_lanes_are_said_once() {
  in_process_with_files(700, [] {
    static std::string log;
    Options options = options_of_many();
    options.log = [](const std::string& line) { log += line + "\n"; };
    {
      Engine engine(options);
      engine.join(std::vector<Endpoint>(200, engine.endpoint()));
      for (const uint32_t lanes : {2u, 8u, 16u}) {
        Tuning tuning;
        tuning.lanes = lanes;
        engine.tune(tuning);
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    CHECK_EQ(1, std::count(log.begin(), log.end(), '\n'));
    CHECK_CONTAINS("lanes (TCP connections) to each other rank", log);
  });
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(too_few_files_for_one_lane_are_an_error_before_the_first_connection);
  RUN(too_few_files_for_all_lanes_are_said_once);
  RUN(few_dials_are_under_way_and_lanes_0_come_first);
  RUN(a_dial_is_repeated_until_its_time_limit);
  RUN(only_many_refusals_in_a_row_are_an_end);
  RUN(ranks_have_places_that_strangers_cannot_take);
  RUN(lanes_are_as_many_as_open_files_allow);
  RUN(an_engine_raises_the_limit_of_open_files);
  RUN(no_file_for_a_dial_is_a_fault_after_a_second);
  RUN(no_file_for_an_accepted_connection_is_a_fault_logged_once);
  RUN(slow_ranks_are_no_strangers);
  RUN(a_connection_without_confirmation_is_opened_again);
  RUN(another_secret_is_final);
  RUN(a_start_ends_at_its_time_limit);
  RUN(failed_connections_are_made_again);
  RUN(more_ranks_start_than_there_are_places_for_strangers);
}
