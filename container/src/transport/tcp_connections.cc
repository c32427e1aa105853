// SPDX-License-Identifier: Apache-2.0
// Connections of TcpTransport, whichever side has opened them: their handshakes, their time limits,
// and the limit of open files.
#include <sys/epoll.h>

#include <algorithm>
#include <set>
#include <utility>

#include "smdist/errors.h"
#include "transport/fd_passing.h"
#include "transport/open_files.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kOutOfFilesTime{1'000};

}  // namespace

// Counts the open files that the connections need, before the first of them is opened.
void TcpTransport::count_files() {
  lanes_that_fit_ = lanes_within(options_, open_files_limit(), count_open_files());
  log_fewer_lanes_that_fit();
}

void TcpTransport::log_fewer_lanes_that_fit() {
  if (tuning_.lanes <= lanes_that_fit_ || std::exchange(is_fewer_lanes_logged_, true)) return;
  log("this rank continues with " + std::to_string(lanes_that_fit_) + " instead of " +
      std::to_string(tuning_.lanes) + " lanes (TCP connections) to each other rank. " +
      open_files_hint());
}

uint64_t TcpTransport::add_handshake(AuthHandshake auth, uint32_t events,
                                     Clock::time_point deadline, bool is_check) {
  const int fd = auth.fd();
  const uint64_t number = ++last_handshake_;
  watch(fd, events, cookie(EventSource::kHandshake, number), true);
  handshakes_.emplace(number, Handshake{std::move(auth), deadline, is_check, {}});
  return number;
}

void TcpTransport::advance(uint64_t number) {
  const auto found = handshakes_.find(number);
  if (found == handshakes_.end()) return;
  if (found->second.is_check) return liveness_checked(found);
  AuthHandshake& auth = found->second.auth;
  const AuthHandshake::Outcome outcome = auth.advance();
  if (auth.is_dialling() && auth.has_connected()) heard_from(auth.peer());
  switch (outcome) {
    case AuthHandshake::Outcome::kWaiting:
      if (auth.is_proven()) on_proven(found);
      return watch(auth.fd(), auth.wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN,
                   cookie(EventSource::kHandshake, number), false);
    case AuthHandshake::Outcome::kAuthenticated:
      return attach_lane(found);
    case AuthHandshake::Outcome::kFailed:
      return fail_handshake(found);
  }
}

void TcpTransport::attach_lane(Handshakes::iterator handshake) {
  const int peer = handshake->second.auth.peer();
  const int link = link_of(peer, handshake->second.auth.lane());
  const LaneKeys keys = handshake->second.auth.keys();
  UniqueFd fd = handshake->second.auth.take_fd();
  const AuthHandshake auth = std::move(handshake->second.auth);
  dial_schedule_.remove(link);
  end_handshake(handshake);
  if (!may_attach(link, fd.get())) return unwatch(fd.get());
  const bool is_again = lane(link).has_lived();
  watch(fd.get(), EPOLLIN, cookie(EventSource::kLane, static_cast<uint64_t>(link)), false);
  if (is_unix_socket(fd.get())) {
    lane(link).attach_shared_memory(std::move(fd), host_peers_.fd(), host_peers_.ring(peer));
  } else {
    continue_lane(link, std::move(fd), auth, keys);
  }
  if (link != peer || is_again || !lane(link).is_live()) return;
  if (lane(peer).uses_shared_memory()) drop_extra_lanes(peer);
  awaited_peers_.erase(peer);
  if (sink_ != nullptr) sink_->on_connected(peer);
  dirty_.insert(peer);
  connect_more_lanes(peer);
}

// Drops additional lanes that a peer has opened before the lane over which it shares memory.
void TcpTransport::drop_extra_lanes(int peer) {
  for (int link = peer + options_.size; link < num_links(); link += options_.size) {
    if (is_live(link)) drop(link);
  }
}

void TcpTransport::fail_handshake(Handshakes::iterator handshake) {
  const AuthHandshake& auth = handshake->second.auth;
  const std::string fault = auth.fault();
  const AuthHandshake::Failure failure = auth.failure();
  const bool is_dialling = auth.is_dialling();
  const int link = is_dialling ? link_of(auth.peer(), auth.lane()) : 0;
  // A connection that is closed without a byte was a liveness check.
  if (!is_dialling && !auth.is_silent()) {
    const std::optional<uint32_t> rank = auth.claimed_rank();
    log_rejection("this rank dropped a connection from " + peer_text(auth.fd()) +
                  (rank ? ", which says it is rank " + std::to_string(*rank) : "") + ": " + fault);
  }
  if (!is_dialling && auth.is_silent()) probe_lanes(handshake->second.source);
  end_handshake(handshake);
  if (is_dialling) dial_failed(link, failure, fault);
}

TcpTransport::Handshakes::iterator TcpTransport::end_handshake(Handshakes::iterator handshake) {
  const uint64_t number = handshake->first;
  const AuthHandshake& auth = handshake->second.auth;
  if (auth.fd() >= 0) unwatch(auth.fd());
  if (!auth.is_dialling()) {
    accept_limits_.leave(number);
    const auto proven = proven_.find(handshake->second.proven_link);
    if (proven != proven_.end() && proven->second == number) proven_.erase(proven);
  }
  return handshakes_.erase(handshake);
}

void TcpTransport::tune(const Tuning& tuning, bool is_last) {
  tuning_ = tuning;
  lanes_that_may_come_ = is_last ? tuning.lanes : options_.max_lanes;
  ensure_lanes(tuning.lanes);
  log_fewer_lanes_that_fit();
  const size_t arriving = arriving_bytes_per_lane();
  limit_receive_buffer(listener_.get(), arriving);
  for (const auto& each : lanes_) {
    if (each && each->is_live() && !each->uses_shared_memory()) {
      each->widen_receive_buffer(arriving);
    }
  }
  for (int peer = 0; peer < options_.size; ++peer) connect_more_lanes(peer);
}

// Returns the limit of bytes in flight for one connection: the limit of this host divided by the
// number of its connections, which is lanes x ranks of this host x other hosts. It is not lower
// than what a connection needs, also between its handshake and the moment when this rank uses it:
// the peer may send its first messages then.
size_t TcpTransport::arriving_bytes_per_lane() const {
  if (tuning_.arriving_bytes == 0) return 0;
  const std::vector<int>& hosts = options_.hosts;
  const std::set<int> names(hosts.begin(), hosts.end());
  if (names.size() < 2) return 0;
  const auto here = static_cast<size_t>(
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(options_.rank)]));
  return std::max(kMinReceiveBuffer,
                  tuning_.arriving_bytes / (here * (names.size() - 1) * tuning_.lanes));
}

void TcpTransport::check_times() {
  const Clock::time_point now = Clock::now();
  next_check_ = now + kTick;
  if (now >= next_listening_) {
    next_listening_ = now + kTick;
    if (num_unlogged_rejections_ > 0) {
      log("this rank dropped " + std::to_string(num_unlogged_rejections_) + " more connections");
    }
    num_unlogged_rejections_ = 0;
    num_rejection_lines_ = 0;
    resume_listening();
  }
  end_late_handshakes(now);
  check_failing_peers(now);
  check_silent_links(now);
  check_interruptions(now);
  check_awaited_peers(now);
  start_dials();
}

void TcpTransport::end_late_handshakes(Clock::time_point now) {
  for (auto it = handshakes_.begin(); it != handshakes_.end();) {
    const AuthHandshake& auth = it->second.auth;
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    const std::string peer = peer_text(auth.fd());
    const int link = auth.is_dialling() ? link_of(auth.peer(), auth.lane()) : -1;
    const bool is_check = it->second.is_check;
    it = end_handshake(it);
    if (is_check) continue;
    if (link >= 0) {
      dial_failed(link, AuthHandshake::Failure::kUnproven,
                  "has not finished the authentication handshake in time");
    } else {
      log_rejection("this rank dropped a connection from " + peer +
                    ": the authentication handshake took too long");
    }
  }
}

void TcpTransport::check_failing_peers(Clock::time_point now) {
  for (auto it = failing_peers_.begin(); it != failing_peers_.end();) {
    const auto [peer, end] = *it++;  // lose() erases the entry
    if (end.first <= now) lose(peer, end.second);
  }
}

// Closes a connection without a proof, because this process has no more open files. Returns whether
// there was one.
bool TcpTransport::free_a_file() {
  const std::optional<uint64_t> oldest = accept_limits_.oldest();
  if (!oldest) return false;
  const auto found = handshakes_.find(*oldest);
  log_rejection("this rank dropped a connection from " + peer_text(found->second.auth.fd()) +
                ": this process has no more open files");
  end_handshake(found);
  return true;
}

// Throws the error, which ends the engine, once the process has had no more open files for a
// second: nothing else would end the wait of this rank and of all others.
void TcpTransport::report_out_of_files(const SystemError& error) {
  const Clock::time_point now = Clock::now();
  if (!out_of_files_since_) out_of_files_since_ = now;
  if (now < *out_of_files_since_ + kOutOfFilesTime || is_out_of_files_reported_) return;
  is_out_of_files_reported_ = true;
  throw SystemError(std::string(error.what()) + ". " + open_files_hint());
}

}  // namespace smdist
