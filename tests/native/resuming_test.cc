// SPDX-License-Identifier: Apache-2.0
// Lanes that continue over another connection when a device between two hosts ends theirs.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "check.h"
#include "cluster.h"
#include "cutting_proxy.h"
#include "stranger.h"
#include "transport/lane.h"
#include "transport/lane_acknowledgement.h"
#include "two_processes.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::CuttingProxy;
using testing::hello_of;
using testing::kCredentials;
using testing::Result;
using testing::start;
using testing::Stranger;
using testing::sum_of;
using testing::text_of;
using testing::TwoProcesses;
using Floats = std::vector<float>;

constexpr Protection kOff{Integrity::kOff, false};
constexpr Protection kCrc32c{Integrity::kCrc32c, false};
constexpr Protection kMac{Integrity::kMac, false};
constexpr Protection kTls{Integrity::kOff, true};
constexpr Protection kAll[] = {kOff, kCrc32c, kMac, kTls, {Integrity::kMac, true}};

// Two engines on two hosts, with the device between them.
class CutPair final {
 public:
  CutPair(const Protection& protection, uint32_t lanes, uint32_t seed, size_t bytes,
          const std::string& ended_hosts_file = "") {
    for (int rank : {0, 1}) {
      engines_[rank] = make_engine(rank, protection, lanes, ended_hosts_file);
    }
    proxy = std::make_unique<CuttingProxy>(engines_[0]->endpoint(), seed, bytes);
    engines_[0]->join({engines_[0]->endpoint(), engines_[1]->endpoint()});
    engines_[1]->join({proxy->endpoint(), engines_[1]->endpoint()});
    for (auto& engine : engines_) engine->add_group(0, {0, 1});
  }

  Engine& operator[](int rank) { return *engines_[rank]; }

  std::unique_ptr<CuttingProxy> proxy;  // destroyed after the engines

 private:
  static std::unique_ptr<Engine> make_engine(int rank, const Protection& protection, uint32_t lanes,
                                             const std::string& ended_hosts_file) {
    Options options;
    options.ended_hosts_file = ended_hosts_file;
    options.rank = rank;
    options.size = 2;
    options.hosts = {0, 1};
    options.shares_memory = false;
    options.secret = kCredentials.secret;
    options.session = kCredentials.session;
    options.protection = protection;
    options.tuning.lanes = lanes;
    options.tuning.chunk_bytes = 64 << 10;
    options.fragment_bytes = 32 << 10;
    return std::make_unique<Engine>(std::move(options));
  }

  std::unique_ptr<Engine> engines_[2];
};

void check_no_error(Result& result) {
  const std::string error = text_of(result);
  if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
  CHECK(error.empty());
}

// Returns values that differ at each place, in each round, and between the ranks.
Floats values_of(int rank, size_t round, size_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + round * 13) % 1000 + 2000 * static_cast<size_t>(rank));
  }
  return values;
}

// Runs several sums at a time, of several lengths, and checks every number.
void check_sums(CutPair& pair, size_t round) {
  constexpr size_t kCounts[] = {1, 250, 3'000, 40'000, 300'000};
  std::vector<Floats> data[2];
  std::vector<Result> results;
  for (const int rank : {0, 1}) {
    for (const size_t count : kCounts) data[rank].push_back(values_of(rank, round, count));
    for (Floats& values : data[rank]) results.push_back(start(pair[rank], 0, sum_of(values)));
  }
  std::reverse(results.begin(), results.end());
  for (Result& result : results) check_no_error(result);
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    Floats expected = values_of(0, round, kCounts[i]);
    const Floats other = values_of(1, round, kCounts[i]);
    for (size_t j = 0; j < expected.size(); ++j) expected[j] += other[j];
    CHECK(data[0][i] == expected);
    CHECK(data[1][i] == expected);
  }
}

void sums_are_right_however_often_connections_end() {
  uint32_t seed = 1;
  for (const Protection& protection : kAll) {
    for (const uint32_t lanes : {1u, 2u, 4u}) {
      CutPair pair(protection, lanes, seed++, 700'000);
      for (size_t round = 0; round < 6; ++round) check_sums(pair, round);
      CHECK(pair.proxy->num_cuts() > 2);
    }
  }
}

// Cuts within handshakes, and within the first frames.
void connections_may_end_at_once() {
  for (uint32_t seed = 100; seed < 110; ++seed) {
    CutPair pair(kAll[seed % std::size(kAll)], 1 + seed % 3, seed, 2'000);
    std::thread later([&] {
      std::this_thread::sleep_for(milliseconds(300));
      pair.proxy->stop_cutting();
    });
    check_sums(pair, seed);
    later.join();
  }
}

// Nothing is under way when the connections end; the next sum finds out.
void an_idle_pair_goes_on() {
  for (const Protection& protection : kAll) {
    CutPair pair(protection, 2, 7, 0);
    for (size_t round = 0; round < 4; ++round) {
      check_sums(pair, round);
      pair.proxy->cut_all();
      std::this_thread::sleep_for(milliseconds(30));
    }
    check_sums(pair, 9);
    CHECK(pair.proxy->num_cuts() >= 4);
  }
}

// The kernel refuses connections to a process that has ended, so its end is found at once, also by
// the rank that does not dial.
void a_crash_is_no_interruption() {
  for (const uint32_t lanes : {1u, 4u}) {
    Options options;
    options.hosts = {0, 1};
    options.shares_memory = false;
    options.tuning.lanes = lanes;
    TwoProcesses both(options, [](Engine& engine) {
      Floats values(200'000, 1);
      start(engine, 0, sum_of(values)).wait();
    });
    Floats values(200'000, 1);
    Result first = start(both.engine(), 0, sum_of(values));
    check_no_error(first);
    Result second = start(both.engine(), 0, sum_of(values));
    both.kill();
    const auto begin = std::chrono::steady_clock::now();
    CHECK_CONTAINS("rank 1 closed its connection", text_of(second));
    CHECK(std::chrono::steady_clock::now() - begin < milliseconds(1500));
  }
}

// Nothing refuses the dials of a rank whose host has ended together with its network. The file of
// its own launcher says so; a host that is not in it may come back.
void a_rank_whose_launcher_has_ended_is_lost() {
  const std::string path = "ended-hosts-" + std::to_string(::getpid());
  CutPair pair(kOff, 2, 3, 0, path);
  check_sums(pair, 0);
  pair.proxy->ignore_dials();
  pair.proxy->cut_all();
  std::ofstream(path) << "10.0.0.9\n";
  Floats values(40'000, 1);
  Result result = start(pair[1], 0, sum_of(values));
  CHECK(result.wait_for(milliseconds(700)) == std::future_status::timeout);
  std::ofstream(path, std::ios::app) << pair.proxy->endpoint().host << "\n";
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = text_of(result);
  CHECK_CONTAINS("rank 0 ", text);
  CHECK_CONTAINS("the launcher of its host has ended, too", text);
  CHECK(std::chrono::steady_clock::now() - begin < seconds(20));  // and not silence_seconds later
  std::remove(path.c_str());
}

// Sink of a lane that receives only acknowledgements.
class NoMessages final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes&) override { throw PeerError("sent a message"); }
  void on_message(int, const HeaderBytes&) override {}
  void on_sent(int, uint64_t) override {}
  void on_peer_lost(int, const std::string&) override {}
};

// Passes over a connection what a lane sends, until nothing more comes. Returns the number of
// bytes.
size_t drain(Lane& lane, int peer) {
  static std::vector<char> buffer(1 << 20);
  size_t total = 0;
  for (bool is_moving = true; is_moving;) {
    is_moving = false;
    bool would_block = false;
    CHECK(!lane.write_some(nullptr, &would_block));
    for (ssize_t got; (got = ::recv(peer, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;) {
      total += static_cast<size_t>(got);
      is_moving = true;
    }
  }
  return total;
}

// A lane keeps a bounded number of sent bytes for another connection, although the peer reads all.
void a_lane_keeps_a_bounded_number_of_bytes() {
  constexpr uint64_t kMost = 1 << 20;
  constexpr size_t kPayload = 300 << 10;
  constexpr size_t kFrame = kPayload + kHeaderBytes;
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd peer(ends[1]);
  Lane lane(1);
  lane.make_resumable(kMost);
  lane.resume(UniqueFd(ends[0]), 0);
  for (int i = 0; i < 10; ++i) {
    Message message;
    message.text.assign(kPayload, 'x');
    lane.send(std::move(message));
  }
  CHECK_EQ(4 * kFrame, drain(lane, peer.get()));
  CHECK(lane.has_work() && lane.awaits_peer());

  const HeaderBytes header = acknowledgement_of(2 * kFrame + 7);
  CHECK(::send(peer.get(), header.data(), header.size(), 0) == kHeaderBytes);
  NoMessages sink;
  CHECK(!lane.read_some(&sink));
  CHECK_EQ(2 * kFrame, drain(lane, peer.get()));

  lane.interrupt(&sink);
  CHECK(!lane.can_resume_from(2 * kFrame) && !lane.can_resume_from(6 * kFrame + 1));
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd next(ends[1]);
  lane.resume(UniqueFd(ends[0]), 5 * kFrame + 3);
  CHECK_EQ(4 * kFrame - 3, drain(lane, next.get()));
}

// A member that knows the secret, but is not the engine that opened the lane.
void nobody_else_continues_a_lane() {
  CutPair pair(kOff, 1, 1, 0);
  check_sums(pair, 0);
  Stranger twin(pair[0].endpoint());
  twin.greet(kCredentials, hello_of(1, 0));
  CHECK(twin.answer() == Stranger::Answer::kRejected);
  check_sums(pair, 1);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_crash_is_no_interruption);  // first: it forks
  RUN(a_lane_keeps_a_bounded_number_of_bytes);
  RUN(nobody_else_continues_a_lane);
  RUN(a_rank_whose_launcher_has_ended_is_lost);
  RUN(an_idle_pair_goes_on);
  RUN(connections_may_end_at_once);
  RUN(sums_are_right_however_often_connections_end);
}
