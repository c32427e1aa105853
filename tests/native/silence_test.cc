// SPDX-License-Identifier: Apache-2.0
// Silence of a peer's kernel, which loses the peer, and of its process, which does not.
#include "transport/silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "cluster.h"
#include "transport/socket.h"
#include "two_processes.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::text_of;
using testing::TwoProcesses;
using Time = SilenceClock::Clock::time_point;

constexpr uint64_t kBefore = 1000;  // bytes that the peer has acknowledged

AnswerState unanswered(milliseconds since_heard, uint64_t acknowledged = kBefore,
                       bool is_window_open = true) {
  return {true, is_window_open, acknowledged, since_heard};
}

void silence_begins_with_what_is_not_answered() {
  SilenceClock clock;
  const Time begin{seconds(1000)};
  CHECK(clock.update({}, begin).count() == 0 && !clock.is_running());
  // Nothing was heard for long before, because nothing was sent.
  CHECK(clock.update(unanswered(seconds(100)), begin).count() == 0 && clock.is_running());
  CHECK(clock.update(unanswered(seconds(103)), begin + seconds(3)) == seconds(3));
  CHECK(clock.update({}, begin + seconds(4)).count() == 0 && !clock.is_running());
  CHECK(clock.update(unanswered(seconds(1)), begin + seconds(5)).count() == 0);
}

void whoever_acknowledges_is_not_silent() {
  SilenceClock clock;
  const Time begin{seconds(1000)};
  clock.update(unanswered(seconds(0)), begin);
  for (int second = 1; second < 100; ++second) {
    const auto state = unanswered(milliseconds(200), kBefore + static_cast<uint64_t>(second));
    CHECK(clock.update(state, begin + seconds(second)) == milliseconds(200));
  }
}

// Only packets of this rank are lost: what the peer sends still arrives.
void data_that_are_never_acknowledged_are_silence() {
  SilenceClock clock;
  const Time begin{seconds(1000)};
  for (int second = 0; second < 10; ++second) {
    CHECK(clock.update(unanswered(milliseconds(10)), begin + seconds(second)) == seconds(second));
  }
}

// The kernel of a process that reads nothing answers every packet, and takes no data.
void a_peer_without_space_that_answers_is_not_silent() {
  SilenceClock clock;
  const Time begin{seconds(1000)};
  for (int second = 0; second < 10; ++second) {
    const auto state = unanswered(milliseconds(300), kBefore, false);
    CHECK(clock.update(state, begin + seconds(second)) <= milliseconds(300));
  }
  CHECK(clock.update(unanswered(milliseconds(300)), begin + seconds(10)) <= seconds(1));
}

int option_of(int fd, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  CHECK(::getsockopt(fd, IPPROTO_TCP, name, &value, &bytes) == 0);
  return value;
}

// The kernel asks on an idle connection, and ends it after exactly the limit.
void an_idle_connection_ends_after_the_limit() {
  const UniqueFd listener = listen_on("127.0.0.1");
  for (const int limit : {2, 5, 10, 11, 60, 899, 900}) {
    const UniqueFd fd = begin_connect("127.0.0.1", local_endpoint(listener.get()), 0);
    set_peer_options(fd.get(), seconds(limit));
    const int probes = option_of(fd.get(), TCP_KEEPCNT);
    CHECK_EQ(limit,
             option_of(fd.get(), TCP_KEEPIDLE) + option_of(fd.get(), TCP_KEEPINTVL) * probes);
    CHECK(probes >= 1 && (limit < 5 || probes >= 3));
    CHECK_EQ(0, option_of(fd.get(), TCP_USER_TIMEOUT));
  }
}

Operation broadcast_of(std::vector<float>& values) {
  Operation operation = sum_of(values);
  operation.kind = Collective::kBroadcast;
  operation.root = 0;
  operation.timeout = seconds(120);
  return operation;
}

// Much longer than the limit of silence, with far more data under way than buffers hold.
void a_stopped_process_ends_nothing() {
  constexpr size_t kCount = 8 << 20;
  Options options;
  options.hosts = {0, 1};
  options.silence = seconds(1);
  TwoProcesses both(options, [](Engine& engine) {
    std::vector<float> values(kCount);
    Result result = start(engine, 0, broadcast_of(values));
    ::raise(SIGSTOP);
    CHECK(text_of(result).empty());
    Result sum = start(engine, 0, sum_of(values));
    CHECK(text_of(sum).empty());
  });
  std::vector<float> values(kCount, 1);
  Result result = start(both.engine(), 0, broadcast_of(values));
  both.await_stop();
  CHECK(result.wait_for(seconds(4)) == std::future_status::timeout);
  both.resume();
  CHECK(text_of(result).empty());
  Result sum = start(both.engine(), 0, sum_of(values));
  CHECK(text_of(sum).empty());
  CHECK(values == std::vector<float>(kCount, 2));
}

void a_silence_out_of_range_is_refused() {
  for (const auto silence : {milliseconds(999), milliseconds(86'400'001)}) {
    Options options;
    options.silence = silence;
    try {
      Engine engine(options);
      CHECK(false);
    } catch (const UsageError& error) {
      CHECK_CONTAINS("silence is " + std::to_string(silence.count()) + " ms", error.what());
    }
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_stopped_process_ends_nothing);  // first: it forks
  RUN(silence_begins_with_what_is_not_answered);
  RUN(whoever_acknowledges_is_not_silent);
  RUN(data_that_are_never_acknowledged_are_silence);
  RUN(a_peer_without_space_that_answers_is_not_silent);
  RUN(an_idle_connection_ends_after_the_limit);
  RUN(a_silence_out_of_range_is_refused);
}
