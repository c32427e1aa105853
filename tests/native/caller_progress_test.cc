// SPDX-License-Identifier: Apache-2.0
// Tests of callers that run the engine while they wait: all operations end when a caller begins to
// wait, when it stops, and while no caller waits.
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <thread>

#include "check.h"
#include "cluster.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::text_of;
using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};
constexpr seconds kSoon{20};  // on a busy machine; forgotten work takes a minute

Operation ended_by(const std::shared_ptr<Completion>& completion, Operation operation) {
  operation.ended = [completion](const std::exception_ptr& error) { completion->complete(error); };
  if (operation.timeout.count() == 0) operation.timeout = seconds(30);
  return operation;
}

// Run the operation on this thread, and return its error as text.
std::string run(Engine& engine, uint32_t group, Operation operation) {
  const auto completion = std::make_shared<Completion>(1);
  operation = ended_by(completion, std::move(operation));
  const Clock::time_point begin = Clock::now();
  engine.submit_and_wait(group, std::move(operation), *completion);
  CHECK(completion->is_done());
  CHECK(Clock::now() - begin < kSoon);
  return text_of(completion->error());
}

void run_sums(Engine& engine, uint32_t group, int times, size_t count = 100) {
  Floats values(count);
  const auto ranks = static_cast<float>(engine.size());
  for (int i = 0; i < times; ++i) {
    std::fill(values.begin(), values.end(), static_cast<float>(i));
    CHECK(run(engine, group, sum_of(values)).empty());
    CHECK_EQ(ranks * static_cast<float>(i), values.front());
    CHECK_EQ(ranks * static_cast<float>(i), values.back());
  }
}

std::string soon(Result& result) {
  CHECK(result.wait_for(kSoon) == std::future_status::ready);
  return text_of(result);
}

// Call `visit` for every rank at the same time.
void on_all(Cluster& cluster, const std::function<void(Engine&)>& visit) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    threads.emplace_back([&, rank] { visit(cluster[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

void add_groups(Cluster& cluster, uint32_t count) {
  std::vector<int> members;
  for (int rank = 0; rank < cluster.size(); ++rank) members.push_back(rank);
  for (int rank = 0; rank < cluster.size(); ++rank) {
    for (uint32_t group = 1; group <= count; ++group) cluster[rank].add_group(group, members);
  }
}

void callers_sum() {
  for (const Network network : kNetworks) {
    for (int size = 1; size <= 4; ++size) {
      Cluster cluster(size, network);
      for (const size_t count : {1, 1000, 30'000}) {
        on_all(cluster, [&](Engine& engine) { run_sums(engine, 0, 10, count); });
      }
    }
  }
}

// The error reaches the caller, and the next operations run.
void a_wrong_operation_throws() {
  Cluster cluster(2, Network::kMemory);
  on_all(cluster, [](Engine& engine) {
    Floats values(10);
    std::exception_ptr error;
    try {
      run(engine, 99, sum_of(values));
    } catch (...) {
      error = std::current_exception();
    }
    CHECK_CONTAINS("UsageError: ", text_of(error));
    run_sums(engine, 0, 3);
  });
}

void several_callers_take_turns() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    add_groups(cluster, 3);
    on_all(cluster, [](Engine& engine) {
      std::vector<std::thread> threads;
      for (uint32_t group = 0; group <= 3; ++group) {
        threads.emplace_back([&engine, group] { run_sums(engine, group, 100, 1 + 3000 * group); });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

void callers_make_progress_for_asynchronous_operations() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network);
    add_groups(cluster, 1);
    on_all(cluster, [](Engine& engine) {
      for (int i = 0; i < 20; ++i) {
        Floats a(100'000, 1);
        Floats b(10, 1);
        Result first = start(engine, 1, sum_of(a));
        Result second = start(engine, 1, sum_of(b));
        run_sums(engine, 0, 5, 2000);
        CHECK(soon(first).empty());
        CHECK(soon(second).empty());
        CHECK_EQ(3.0f, a.back());
      }
    });
  }
}

// An operation that rank 0 began before continues after the caller has returned.
void a_caller_that_leaves_forgets_nothing() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    add_groups(cluster, 1);
    for (int i = 0; i < 5; ++i) {
      Floats a(1 << 20, 1);
      Floats b(1 << 20, 2);
      Result first = start(cluster[0], 1, sum_of(a));
      on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 3); });
      std::this_thread::sleep_for(milliseconds(5 * i));
      Result second = start(cluster[1], 1, sum_of(b));
      CHECK(soon(first).empty());
      CHECK(soon(second).empty());
    }
  }
}

// While a caller waits for a late rank, other threads submit operations, and these end.
void a_waiting_caller_makes_progress_for_others() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    add_groups(cluster, 2);
    std::thread waiting([&] { run_sums(cluster[0], 0, 1); });
    std::this_thread::sleep_for(milliseconds(50));
    on_all(cluster, [](Engine& engine) {
      Floats values(5000, 1);
      for (int i = 0; i < 20; ++i) {
        Result result = start(engine, 1, sum_of(values));
        CHECK(soon(result).empty());
      }
      run_sums(engine, 2, 20);
    });
    run_sums(cluster[1], 0, 1);
    waiting.join();
  }
}

void deadlines_hold_without_callers() {
  for (const Network network : kNetworks) {
    for (const bool is_before : {true, false}) {
      Cluster cluster(2, network);
      add_groups(cluster, 1);
      Floats values(10);
      Operation operation = sum_of(values);
      operation.timeout = milliseconds(400);
      Result late;
      if (is_before) late = start(cluster[0], 1, operation);
      on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 20); });
      if (!is_before) late = start(cluster[0], 1, operation);
      CHECK_CONTAINS("TimeoutError: operation 0 of group 1", soon(late));
    }
  }
}

void deadlines_hold_with_callers() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 5); });
    Floats values(10);
    Operation operation = sum_of(values);
    operation.timeout = milliseconds(300);
    CHECK_CONTAINS("the timeout of 300 ms has expired", run(cluster[0], 0, operation));
  }
}

// A rank that called shutdown() is reported after its grace period, with and without a waiting
// caller.
void a_rank_that_left_is_reported() {
  for (const Network network : kNetworks) {
    for (const bool is_caller : {true, false}) {
      Cluster cluster(2, network);
      on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 20); });
      cluster[1].shutdown();
      Floats values(10);
      if (is_caller) {
        CHECK_CONTAINS("has left the group", run(cluster[0], 0, sum_of(values)));
      } else {
        Result result = start(cluster[0], 0, sum_of(values));
        CHECK_CONTAINS("has left the group", soon(result));
      }
    }
  }
}

void a_caller_gets_an_abort() {
  for (const Network network : kNetworks) {
    for (const int who : {0, 1}) {
      Cluster cluster(2, network);
      on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 5); });
      std::thread aborting([&] {
        std::this_thread::sleep_for(milliseconds(50));
        cluster[who].abort("enough of this");
      });
      Floats values(10);
      CHECK_CONTAINS("enough of this", run(cluster[0], 0, sum_of(values)));
      aborting.join();
      CHECK_CONTAINS("enough of this", run(cluster[0], 0, sum_of(values)));
    }
  }
}

// The first caller holds the lock, the second one waits for its turn. If the engine is destroyed
// meanwhile, the text of the error is not read: the engine shares the error, and ThreadSanitizer
// does not understand the reference counts of libstdc++.
void callers_get_the_end_of_the_engine() {
  for (const Network network : kNetworks) {
    for (const bool is_destroyed : {true, false}) {
      Cluster cluster(2, network);
      add_groups(cluster, 1);
      const auto wait = [&, &engine = cluster[0]](uint32_t group) {
        Floats values(10);
        const auto completion = std::make_shared<Completion>(1);
        Operation operation = ended_by(completion, sum_of(values));
        engine.submit_and_wait(group, std::move(operation), *completion);
        CHECK(completion->error() != nullptr);
        if (!is_destroyed) CHECK_CONTAINS("has shut its engine down", text_of(completion->error()));
      };
      std::thread first(wait, 0);
      std::thread second(wait, 1);
      std::this_thread::sleep_for(milliseconds(50));
      const Clock::time_point begin = Clock::now();
      cluster[0].shutdown();
      if (is_destroyed) cluster.end(0);
      CHECK(Clock::now() - begin < kSoon);
      first.join();
      second.join();
    }
  }
}

// Each operation is rejected by submit(), or it ends.
void no_operation_stays_pending_for_ever() {
  for (int i = 0; i < 100; ++i) {
    Floats values(10);  // must outlive the engine
    Cluster cluster(1);
    std::atomic<int> submitted = 0;
    std::atomic<int> ended = 0;
    std::thread submitting([&] {
      try {
        while (true) {
          Operation operation = sum_of(values);
          operation.timeout = seconds(30);
          operation.done = [&ended](const std::exception_ptr&) { ++ended; };
          cluster[0].submit(0, std::move(operation));
          ++submitted;
        }
      } catch (const UsageError& error) {
        CHECK_CONTAINS("was shut down", error.what());
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(100 * (i % 10)));
    cluster[0].shutdown();
    submitting.join();
    CHECK_EQ(submitted.load(), ended.load());
  }
}

void callbacks_may_wait() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    add_groups(cluster, 1);
    std::promise<void> ended[2];
    Floats values[2] = {Floats(10, 1), Floats(10, 1)};
    for (const int rank : {0, 1}) {
      Operation operation = sum_of(values[rank]);
      operation.timeout = seconds(30);
      operation.done = [&, rank](const std::exception_ptr&) {
        run_sums(cluster[rank], 1, 5);
        ended[rank].set_value();
      };
      cluster[rank].submit(0, std::move(operation));
    }
    for (std::promise<void>& each : ended) {
      CHECK(each.get_future().wait_for(kSoon) == std::future_status::ready);
    }
  }
}

void waiting_has_a_limit() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    Floats a(1000, 1);
    Floats b(1000, 1);
    const auto completion = std::make_shared<Completion>(1);
    cluster[0].submit(0, ended_by(completion, sum_of(a)));
    CHECK(!cluster[0].wait(*completion, Clock::now() + milliseconds(50)));
    Result other = start(cluster[1], 0, sum_of(b));
    CHECK(soon(other).empty());  // rank 0 makes progress without a caller
    CHECK(cluster[0].wait(*completion, Clock::now() + kSoon));
    CHECK_EQ(2.0f, a[0]);
  }
}

// The caller's own rounding mode stays as it is.
void sums_do_not_depend_on_the_callers_rounding() {
  Cluster cluster(2);
  Floats values[2] = {Floats(1, 1), Floats(1, 1e-9f)};
  on_all(cluster, [&](Engine& engine) {
    std::fesetround(FE_UPWARD);
    CHECK(run(engine, 0, sum_of(values[engine.rank()])).empty());
    CHECK_EQ(FE_UPWARD, std::fegetround());
    std::fesetround(FE_TONEAREST);
  });
  CHECK_EQ(1.0f, values[0][0]);
  CHECK_EQ(1.0f, values[1][0]);
}

// Check that a waiting caller gets SCHED_BATCH within `limit`, or that it does not.
int policy_of_waiting(std::chrono::microseconds pause, milliseconds limit) {
  Cluster cluster(2, Network::kTcp, [&](Options& options) { options.pause = pause; });
  std::atomic<pid_t> id{0};
  std::thread waiting([&] {
    id = ::gettid();
    run_sums(cluster[0], 0, 1);
    CHECK_EQ(SCHED_OTHER, ::sched_getscheduler(0));
  });
  const Clock::time_point end = Clock::now() + limit;
  int policy = SCHED_OTHER;
  while (policy != SCHED_BATCH && Clock::now() < end) {
    if (id != 0) policy = ::sched_getscheduler(id);
    std::this_thread::sleep_for(milliseconds(1));
  }
  run_sums(cluster[1], 0, 1);
  waiting.join();
  return policy;
}

void waiting_callers_are_batches_where_processors_are_few() {
  CHECK_EQ(SCHED_BATCH, policy_of_waiting(std::chrono::microseconds(0), seconds(10)));
  CHECK_EQ(SCHED_OTHER, policy_of_waiting(std::chrono::microseconds(50), milliseconds(100)));
}

void a_fork_disturbs_no_caller() {
  Cluster cluster(2, Network::kTcp);
  std::thread calling([&] { on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 300); }); });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const int rank : {0, 1}) cluster[rank].close_in_child();
      ::_exit(0);
    }
    int status = 0;
    CHECK_EQ(child, ::waitpid(child, &status, 0));
    CHECK_EQ(0, status);
  }
  calling.join();
}

// In the child, the descriptor numbers of the parent's connections refer to other files.
void a_forked_child_keeps_its_own_files() {
  Cluster cluster(2, Network::kTcp);
  int own[2];
  int go[2];
  CHECK_EQ(0, ::pipe(own));
  CHECK_EQ(0, ::pipe(go));
  const pid_t child = ::fork();
  if (child == 0) {
    char word = 0;
    if (::read(go[0], &word, 1) != 1) ::_exit(2);
    for (const int rank : {0, 1}) cluster[rank].close_in_child();
    ::_exit(::fcntl(own[0], F_GETFD) >= 0 && ::fcntl(own[1], F_GETFD) >= 0 ? 0 : 1);
  }
  for (const int fd : own) ::close(fd);
  on_all(cluster, [](Engine& engine) { run_sums(engine, 0, 1); });
  CHECK_EQ(1, ::write(go[1], "", 1));
  int status = 0;
  CHECK_EQ(child, ::waitpid(child, &status, 0));
  CHECK_EQ(0, status);
  for (const int fd : go) ::close(fd);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(callers_sum);
  RUN(a_wrong_operation_throws);
  RUN(several_callers_take_turns);
  RUN(callers_make_progress_for_asynchronous_operations);
  RUN(a_caller_that_leaves_forgets_nothing);
  RUN(a_waiting_caller_makes_progress_for_others);
  RUN(deadlines_hold_without_callers);
  RUN(deadlines_hold_with_callers);
  RUN(a_rank_that_left_is_reported);
  RUN(a_caller_gets_an_abort);
  RUN(callers_get_the_end_of_the_engine);
  RUN(no_operation_stays_pending_for_ever);
  RUN(callbacks_may_wait);
  RUN(waiting_has_a_limit);
  RUN(sums_do_not_depend_on_the_callers_rounding);
  RUN(waiting_callers_are_batches_where_processors_are_few);
  RUN(a_fork_disturbs_no_caller);
  RUN(a_forked_child_keeps_its_own_files);
}
