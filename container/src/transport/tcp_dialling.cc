// SPDX-License-Identifier: Apache-2.0
// Connections that TcpTransport opens, and the checks whether awaited peers are alive.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "transport/fd_passing.h"
#include "transport/open_files.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

// The checks of a rank are spread over time, because all ranks of a large job may await each other.
constexpr milliseconds kLivenessCheckEvery{1'000};
constexpr size_t kLivenessChecksPerSecond = 16;
constexpr milliseconds kLivenessCheckTime{10'000};
constexpr int kFailuresUntilLogged = 8;

// Longest dial of a lane that has lost its connection. The kernel repeats the first packet after 1
// and 3 seconds, and then too rarely to find out soon that a network is back.
constexpr milliseconds kRedialTime{5'000};

}  // namespace

// Makes sure that a link is connected soon: by this rank if its number is higher, else by the peer.
void TcpTransport::connect_link(int link) {
  const int peer = peer_of(link);
  if (dials(peer)) return dial_schedule_.add(link, Clock::now());
  awaited_peers_.try_emplace(peer, AwaitedPeer{Clock::now() + liveness_interval(), 0});
}

void TcpTransport::connect_more_lanes(int peer) {
  if (!dials(peer) || !is_live(peer) || lane(peer).uses_shared_memory()) return;
  for (uint32_t number = 1; number < used_lanes(); ++number) {
    const int link = link_of(peer, number);
    if (!lane(link).has_lived()) dial_schedule_.add(link, Clock::now());
  }
}

// Begins the dials that are due. A limited number is under way at a time, so that events of other
// connections are processed in between.
void TcpTransport::start_dials() {
  if (dial_schedule_.is_empty()) return;
  while (const std::optional<int> link = dial_schedule_.next(Clock::now())) dial(*link);
  wake_at(dial_schedule_.next_due());
}

void TcpTransport::dial(int link) {
  const int peer = peer_of(link);
  const uint32_t number = number_of(link);
  const bool is_unused = number > 0 && number >= used_lanes() && !is_interrupted(link);
  if (lane(link).is_live() || lane(peer).is_lost() || is_unused) {
    return dial_schedule_.remove(link);
  }
  const Clock::time_point now = Clock::now();
  try {
    AuthHandshake auth =
        AuthHandshake::dialling(begin_dialling(link), credentials_, options_.rank, peer, number,
                                lane(link).received(), engine_number_);
    const Clock::time_point latest = dial_schedule_.deadline(link, now);
    add_handshake(std::move(auth), EPOLLOUT,
                  is_interrupted(link) ? std::min(latest, now + kRedialTime) : latest, false);
    out_of_files_since_.reset();
  } catch (const SystemError& error) {
    if (!is_out_of_files(error.error_number())) {
      return dial_failed(link, AuthHandshake::Failure::kUnproven,
                         std::string("could not be reached: ") + error.what());
    }
    dial_schedule_.postpone(link, now);
    if (!free_a_file()) report_out_of_files(error);
  }
}

// Opens a connection for a lane: a Unix socket for lane 0 to a rank of this host, else TCP.
UniqueFd TcpTransport::begin_dialling(int link) {
  const int peer = peer_of(link);
  const Endpoint& to = peers_[static_cast<size_t>(peer)];
  if (host_peers_.shares_with(peer) && link == peer && !to.local.empty()) {
    UniqueFd fd = connect_unix(to.local);
    if (fd.is_open()) return fd;
  }
  return begin_connect(options_.bind_address, to, arriving_bytes_per_lane());
}

// Decides whether a link is dialled again. A proof that is wrong, or that rejects the connection,
// is final; everything else may be chance.
void TcpTransport::dial_failed(int link, AuthHandshake::Failure failure, const std::string& fault) {
  using Failure = AuthHandshake::Failure;
  if (failure == Failure::kRejected || failure == Failure::kWrongProof) {
    dial_schedule_.remove(link);
    return give_up(link, fault);
  }
  if (failure == Failure::kNoListener) heard_from(peer_of(link));
  switch (dial_schedule_.ended(link, failure == Failure::kNoListener, Clock::now())) {
    case DialSchedule::Next::kAgain:
      wake_at(dial_schedule_.next_due());
      return log_slow_dial(link, fault);
    case DialSchedule::Next::kEnded:
      return give_up(link, fault);
    case DialSchedule::Next::kTooLate: {
      if (is_interrupted(link))
        return dial_schedule_.add(link, Clock::now(), kRefusalsOfCrashedPeer);
      const auto seconds =
          std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count();
      return give_up(
          link, fault + " (this rank has tried to connect for " + std::to_string(seconds) + " s)");
    }
  }
}

// Continues without a link: without an additional lane the job is only slower, without lane 0 the
// peer is lost.
void TcpTransport::give_up(int link, const std::string& reason) {
  const int peer = peer_of(link);
  if (is_interrupted(link)) return lose(peer, interruptions_.at(link).reason);
  if (link == peer) return lose(peer, reason);
  const bool is_expected = !is_live(peer) || number_of(link) >= used_lanes();
  if (is_expected || std::exchange(is_fewer_lanes_logged_, true)) return;
  log("this rank continues with fewer lanes (TCP connections), because rank " +
      std::to_string(peer) + " " + reason + ". This line is not repeated for other lanes");
}

void TcpTransport::log_slow_dial(int link, const std::string& fault) {
  if (dial_schedule_.failures(link) != kFailuresUntilLogged) return;
  if (std::exchange(is_slow_dial_logged_, true)) return;
  log("this rank cannot connect to rank " + std::to_string(peer_of(link)) + " yet, which " + fault +
      ". It tries again until the start timeout. This line is not repeated for other ranks");
}

TcpTransport::Clock::duration TcpTransport::liveness_interval() const {
  const size_t seconds = awaited_peers_.size() / kLivenessChecksPerSecond;
  return std::max<Clock::duration>(kLivenessCheckEvery, std::chrono::seconds(seconds));
}

void TcpTransport::check_awaited_peers(Clock::time_point now) {
  for (auto& [peer, awaited] : awaited_peers_) {
    if (awaited.next_check > now) continue;
    awaited.next_check = now + liveness_interval();
    check_liveness(peer);
  }
}

// Connects to a peer only to check whether it still listens.
void TcpTransport::check_liveness(int peer) {
  const bool is_checking = std::any_of(
      handshakes_.begin(), handshakes_.end(),
      [peer](const auto& each) { return each.second.is_check && each.second.auth.peer() == peer; });
  if (is_checking) return;
  try {
    UniqueFd fd = begin_connect(options_.bind_address, peers_[static_cast<size_t>(peer)], 0);
    add_handshake(AuthHandshake::dialling(std::move(fd), credentials_, options_.rank, peer),
                  EPOLLOUT, Clock::now() + kLivenessCheckTime, true);
  } catch (const SystemError& error) {
    if (is_out_of_files(error.error_number())) return report_out_of_files(error);
    log_rejection("this rank could not check whether rank " + std::to_string(peer) +
                  " is alive: " + error.what());
  }
}

// Processes the result of a check. As for dials, only several refusals in a row count.
void TcpTransport::liveness_checked(Handshakes::iterator handshake) {
  const int peer = handshake->second.auth.peer();
  const int result = connect_error(handshake->second.auth.fd());
  const bool is_refused = result == ECONNREFUSED;
  if (is_refused || result == 0) heard_from(peer);
  end_handshake(handshake);
  const auto awaited = awaited_peers_.find(peer);
  if (awaited == awaited_peers_.end()) return;
  int& refusals = awaited->second.refusals;
  refusals = is_refused ? refusals + 1 : 0;
  const std::optional<std::string> end = end_of(peer);
  if (end && refusals >= kRefusalsOfCrashedPeer) return lose(peer, *end);
  if (refusals >= kRefusalsOfEndedPeer) {
    return lose(peer, "refused the connection: its process has ended");
  }
  if (!is_refused) return;
  awaited->second.next_check = Clock::now() + kPauseAfterRefusal;
  wake_at(awaited->second.next_check);
}

}  // namespace smdist
