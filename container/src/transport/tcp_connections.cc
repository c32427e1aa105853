// SPDX-License-Identifier: Apache-2.0
// Connections of TcpTransport: opening, accepting, authentication, and rejection.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "smdist/errors.h"
#include "transport/fd_passing.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxPendingHandshakes =
    64;  // maximum number of accepted connections that are not authenticated
constexpr milliseconds kHandshakeTimeout{5'000};  // time limit of a handshake
constexpr milliseconds kCrowdedHandshakeTimeout{250};
constexpr int kMaxRejectionLines =
    16;  // lines per tick, so that a flood of connections does not fill the disk
constexpr milliseconds kLivenessCheckEvery{1'000};

}  // namespace

void TcpTransport::dial(int link) {
  const int peer = peer_of(link);
  const auto number = static_cast<uint32_t>(link / options_.size);
  if (!dials(peer)) {
    awaiting_dial_.emplace(peer, Clock::now() + kLivenessCheckEvery);
    return;
  }
  for (const auto& [_, handshake] : handshakes_) {
    if (handshake.is_dialling() && handshake.peer() == peer && handshake.lane() == number) return;
  }
  try {
    UniqueFd fd = begin_dialling(link);
    const int raw = fd.get();
    const uint64_t name = ++last_handshake_;
    handshakes_.emplace(
        name, AuthHandshake::dialling(std::move(fd), credentials_, options_.rank, peer, number));
    watch(raw, EPOLLOUT, cookie(EventSource::kHandshake, name), true);
  } catch (const SystemError& error) {
    if (number > 0)
      return log("this rank continues with fewer lanes (TCP connections) to rank " +
                 std::to_string(peer) + ": " + error.what());
    lose(peer, std::string("could not be reached: ") + error.what());
  }
}

void TcpTransport::dial_more_lanes(int peer) {
  if (!dials(peer) || !lane(peer).is_live() || lane(peer).uses_shared_memory()) return;
  for (uint32_t number = 1; number < tuning_.lanes; ++number) {
    if (!lane(link_of(peer, number)).has_lived()) dial(link_of(peer, number));
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

void TcpTransport::accept_all() {
  accept_from_listener(listener_.get());
  if (local_listener_.is_open()) accept_from_listener(local_listener_.get());
}

void TcpTransport::accept_from_listener(int listener) {
  while (true) {
    const auto pending = static_cast<size_t>(
        std::count_if(handshakes_.begin(), handshakes_.end(),
                      [](const auto& each) { return !each.second.is_dialling(); }));
    if (pending >= kMaxPendingHandshakes && !drop_slow_handshakes(kCrowdedHandshakeTimeout)) {
      return pause_listening();  // further connections wait in the kernel
    }
    UniqueFd fd;
    try {
      fd = accept_from(listener);
    } catch (const SystemError& error) {  // may be temporary, such as too many open files
      log(error.what());
      return pause_listening();
    }
    if (!fd.is_open()) return;
    const int raw = fd.get();
    const uint64_t number = ++last_handshake_;
    auto admitting = [this](const Hello& hello) { return admit(hello); };
    handshakes_.emplace(number, AuthHandshake::accepting(std::move(fd), credentials_, admitting));
    watch(raw, EPOLLIN, cookie(EventSource::kHandshake, number), true);
    advance(number);
  }
}

void TcpTransport::watch_listeners(uint32_t events, bool is_new) {
  watch(listener_.get(), events, cookie(EventSource::kListener, 0), is_new);
  if (local_listener_.is_open()) {
    watch(local_listener_.get(), events, cookie(EventSource::kListener, 0), is_new);
  }
}

void TcpTransport::pause_listening() {
  watch_listeners(0, false);
  is_listening_ = false;
}

void TcpTransport::resume_listening() {
  if (is_listening_) return;
  watch_listeners(EPOLLIN, false);
  is_listening_ = true;
}

std::string TcpTransport::admit(const Hello& hello) {
  const auto rank = static_cast<uint32_t>(options_.rank);
  if (hello.wanted != rank)
    return "the remote process wants to reach rank " + std::to_string(hello.wanted) +
           ", which is not this rank";
  if (hello.rank <= rank || hello.rank >= lanes_.size()) {
    return "the remote process claims to be rank " + std::to_string(hello.rank) +
           ", from which no connection is expected";
  }
  if (hello.lane >= kMaxLanes)
    return "the remote process requests connection number " + std::to_string(hello.lane) +
           ", counted from 0, but two ranks have at most " + std::to_string(kMaxLanes) +
           " connections";
  ensure_lanes(hello.lane + 1);
  const Lane& existing = lane(link_of(static_cast<int>(hello.rank), hello.lane));
  const bool is_known = existing.is_live() || existing.is_lost();
  return is_known ? "rank " + std::to_string(hello.rank) + " opened this connection already" : "";
}

void TcpTransport::advance(uint64_t number) {
  const auto found = handshakes_.find(number);
  if (found == handshakes_.end()) return;
  AuthHandshake& handshake = found->second;
  if (liveness_checks_.count(number) > 0) {
    const int peer = liveness_checks_[number];
    const bool is_dead = connect_error(handshake.fd()) == ECONNREFUSED;
    liveness_checks_.erase(number);
    end_handshake(found);
    if (is_dead) lose(peer, "refused the connection: its process has ended");
    return;
  }
  switch (handshake.advance()) {
    case AuthHandshake::Outcome::kWaiting:
      return watch(handshake.fd(), handshake.wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN,
                   cookie(EventSource::kHandshake, number), false);
    case AuthHandshake::Outcome::kAuthenticated:
      return attach_lane(found);
    case AuthHandshake::Outcome::kFailed:
      return fail_handshake(found);
  }
}

void TcpTransport::attach_lane(Handshakes::iterator handshake) {
  const int peer = handshake->second.peer();
  const int link = link_of(peer, handshake->second.lane());
  UniqueFd fd = handshake->second.take_fd();
  const LaneKeys keys = handshake->second.keys();
  handshakes_.erase(handshake);
  resume_listening();
  // Two connections may authenticate at the same time; only the first one is used.
  if (lane(link).is_live() || lane(link).is_lost() || lane(peer).is_lost()) return;
  const bool shares = link == peer && host_peers_.shares_with(peer);
  if (is_unix_socket(fd.get()) && !shares)
    return log("this rank dropped a Unix socket connection of rank " + std::to_string(peer) +
               ": such connections are only for ranks that share memory with this rank");
  watch(fd.get(), EPOLLIN, cookie(EventSource::kLane, static_cast<uint64_t>(link)), false);
  if (is_unix_socket(fd.get())) {
    lane(link).attach_shared_memory(std::move(fd), host_peers_.fd(), host_peers_.ring(peer));
  } else {
    set_peer_options(fd.get());
    lane(link).attach(std::move(fd));
    lane(link).protect(options_.protection, keys);
    dirty_.insert(link);  // TLS begins at once, also without a message
    lane(link).widen_receive_buffer(arriving_bytes_per_lane());
  }
  if (link != peer) return;
  awaiting_dial_.erase(peer);
  if (sink_ != nullptr) sink_->on_connected(peer);
  dirty_.insert(peer);
  dial_more_lanes(peer);
}

void TcpTransport::tune(const Tuning& tuning) {
  tuning_ = tuning;
  ensure_lanes(tuning.lanes);
  const size_t arriving = arriving_bytes_per_lane();
  limit_receive_buffer(listener_.get(), arriving);
  for (Lane& each : lanes_) {
    if (each.is_live() && !each.uses_shared_memory()) each.widen_receive_buffer(arriving);
  }
  for (int peer = 0; peer < options_.size; ++peer) dial_more_lanes(peer);
}

// Returns the limit of bytes in flight for one connection: the limit of this host divided by the
// number of its connections, which is lanes x ranks of this host x other hosts.
size_t TcpTransport::arriving_bytes_per_lane() const {
  if (tuning_.arriving_bytes == 0) return 0;
  const std::vector<int>& hosts = options_.hosts;
  const std::set<int> names(hosts.begin(), hosts.end());
  if (names.size() < 2) return 0;
  const auto here = static_cast<size_t>(
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(options_.rank)]));
  return std::max(size_t{1}, tuning_.arriving_bytes / (here * (names.size() - 1) * tuning_.lanes));
}

void TcpTransport::fail_handshake(Handshakes::iterator handshake) {
  const std::string fault = handshake->second.fault();
  const bool is_dialling = handshake->second.is_dialling();
  const int peer = handshake->second.peer();
  // A connection that is closed without a byte was a liveness check.
  if (!is_dialling && !handshake->second.is_silent()) {
    log_rejection("this rank dropped a connection from " + peer_text(handshake->second.fd()) +
                  ": " + fault);
  }
  const bool is_spare = handshake->second.lane() > 0;
  end_handshake(handshake);
  resume_listening();
  if (is_dialling && is_spare)
    return log("this rank continues with fewer lanes (TCP connections), because rank " +
               std::to_string(peer) + " " + fault);
  if (is_dialling) lose(peer, fault);
}

TcpTransport::Handshakes::iterator TcpTransport::end_handshake(Handshakes::iterator handshake) {
  unwatch(handshake->second.fd());
  return handshakes_.erase(handshake);
}

// Drops accepted connections that have not authenticated within `limit`. Returns whether there were
// any.
bool TcpTransport::drop_slow_handshakes(Clock::duration limit) {
  const Clock::time_point now = Clock::now();
  bool is_any = false;
  for (auto it = handshakes_.begin(); it != handshakes_.end();) {
    const AuthHandshake& handshake = it->second;
    if (handshake.is_dialling() || now - handshake.begin() <= limit) {
      ++it;
      continue;
    }
    const auto ms = std::chrono::duration_cast<milliseconds>(limit).count();
    log_rejection("this rank dropped a connection from " + peer_text(handshake.fd()) +
                  ": the authentication handshake took longer than " + std::to_string(ms) + " ms");
    it = end_handshake(it);
    is_any = true;
  }
  return is_any;
}

void TcpTransport::log_rejection(const std::string& line) {
  if (++num_rejection_lines_ <= kMaxRejectionLines) log(line);
}

void TcpTransport::check_times() {
  const Clock::time_point now = Clock::now();
  next_check_ = now + kTick;
  if (num_rejection_lines_ > kMaxRejectionLines) {
    log("this rank dropped " + std::to_string(num_rejection_lines_ - kMaxRejectionLines) +
        " more connections");
  }
  num_rejection_lines_ = 0;
  resume_listening();
  drop_slow_handshakes(kHandshakeTimeout);
  for (auto it = failing_peers_.begin(); it != failing_peers_.end();) {
    const auto [peer, end] = *it++;  // lose() erases the entry
    if (end.first <= now) lose(peer, end.second);
  }
  for (auto& [peer, when] : awaiting_dial_) {
    if (when > now) continue;
    when = now + kLivenessCheckEvery;
    check_liveness(peer);
  }
}

// Connects to a peer only to check whether it still listens.
void TcpTransport::check_liveness(int peer) {
  for (const auto& [number, checked] : liveness_checks_) {
    if (checked == peer) return;
  }
  try {
    UniqueFd fd = begin_connect(options_.bind_address, peers_[static_cast<size_t>(peer)], 0);
    const int raw = fd.get();
    const uint64_t number = ++last_handshake_;
    handshakes_.emplace(number,
                        AuthHandshake::dialling(std::move(fd), credentials_, options_.rank, peer));
    liveness_checks_[number] = peer;
    watch(raw, EPOLLOUT, cookie(EventSource::kHandshake, number), true);
  } catch (const SystemError& error) {
    log("this rank could not check whether rank " + std::to_string(peer) +
        " is alive: " + error.what());
  }
}

}  // namespace smdist
