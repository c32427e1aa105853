// SPDX-License-Identifier: Apache-2.0
// Connections that TcpTransport accepts.
#include <sys/epoll.h>

#include <chrono>
#include <string>
#include <utility>

#include "transport/fd_passing.h"
#include "transport/open_files.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr int kAcceptsPerTurn = 64;  // then it is the turn of other events

// Time limits of a handshake. A rank may be on a machine with too little processor time, and ends a
// handshake that it has given up; a stranger keeps its place for longer than it needs.
constexpr milliseconds kRankHandshakeTime{60'000};
constexpr milliseconds kStrangerHandshakeTime{5'000};

constexpr int kMaxRejectionLines =
    16;  // lines per tick, so that a flood of connections does not fill the disk

std::string source_of(int fd) { return is_unix_socket(fd) ? kUnixSource : peer_host(fd); }

}  // namespace

void TcpTransport::accept_all() {
  accept_from_listener(listener_.get());
  if (local_listener_.is_open()) accept_from_listener(local_listener_.get());
}

void TcpTransport::accept_from_listener(int listener) {
  const auto admitting = [this](const Hello& hello) { return admit(hello); };
  for (int turn = 0; turn < kAcceptsPerTurn; ++turn) {
    UniqueFd fd;
    try {
      fd = accept_from(listener);
      out_of_files_since_.reset();
      if (!fd.is_open()) return;
    } catch (const SystemError& error) {
      if (is_out_of_files(error.error_number()) && free_a_file()) continue;
      pause_listening();  // further connections wait in the kernel
      if (is_out_of_files(error.error_number())) return report_out_of_files(error);
      return log_rejection(error.what());
    }
    const bool is_known = accept_limits_.is_known(source_of(fd.get()));
    const auto limit = is_known ? kRankHandshakeTime : kStrangerHandshakeTime;
    const uint64_t number =
        add_handshake(AuthHandshake::accepting(std::move(fd), credentials_, admitting), EPOLLIN,
                      Clock::now() + limit, false);
    handshakes_.at(number).source = source_of(handshakes_.at(number).auth.fd());
    place(number);
    advance(number);
  }
}

// Gives the connection a place among those without a proof. Ends the connection that loses its
// place, if there is one.
void TcpTransport::place(uint64_t number) {
  const std::string source = source_of(handshakes_.at(number).auth.fd());
  const std::optional<uint64_t> loser = accept_limits_.enter(number, source);
  if (!loser) return;
  const auto found = handshakes_.find(*loser);
  log_rejection("this rank dropped a connection from " + peer_text(found->second.auth.fd()) +
                ": there are more than " + std::to_string(accept_limits_.places(source)) +
                " connections without authentication from its address");
  end_handshake(found);
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

AuthHandshake::Admission TcpTransport::admit(const Hello& hello) {
  const std::string rejection = rejection_of(hello);
  if (!rejection.empty()) return {rejection};
  const int link = link_of(static_cast<int>(hello.rank), hello.lane);
  return {"", lane(link).received()};
}

// Decides whether a process that knows the secret may open a lane, or continue it. Returns the
// reason to reject it.
std::string TcpTransport::rejection_of(const Hello& hello) {
  const auto rank = static_cast<uint32_t>(options_.rank);
  if (hello.wanted != rank)
    return "the remote process wants to reach rank " + std::to_string(hello.wanted) +
           ", which is not this rank";
  if (hello.rank <= rank || hello.rank >= static_cast<uint32_t>(options_.size)) {
    return "the remote process claims to be rank " + std::to_string(hello.rank) +
           ", from which no connection is expected";
  }
  const int peer = static_cast<int>(hello.rank);
  const std::string name = "rank " + std::to_string(peer);
  const uint32_t most = std::min(lanes_that_may_come_, lanes_that_fit_);
  if (hello.lane >= most) {
    return name + " requests connection number " + std::to_string(hello.lane) +
           ", counted from 0, but two ranks have at most " + std::to_string(most) + " connections";
  }
  if (lane(peer).is_lost()) return name + " is lost already, so it cannot connect again";
  if (hello.lane > 0 && is_live(peer) && lane(peer).uses_shared_memory()) {
    return name + " shares memory with this rank, so it needs no further connection";
  }
  ensure_lanes(hello.lane + 1);
  const int link = link_of(peer, hello.lane);
  return may_continue(link, hello) ? "" : name + " opened this connection already";
}

// Records that the dialler has proved to know the secret, so that its connection needs no place
// among those of strangers. If the link has another such connection, the dialler has given that one
// up.
void TcpTransport::on_proven(Handshakes::iterator handshake) {
  accept_limits_.leave(handshake->first);
  const AuthHandshake& auth = handshake->second.auth;
  const int link = link_of(auth.peer(), auth.lane());
  handshake->second.proven_link = link;
  const auto [entry, is_new] = proven_.try_emplace(link, handshake->first);
  const uint64_t before = std::exchange(entry->second, handshake->first);
  if (!is_new && before != handshake->first) end_handshake(handshakes_.find(before));
}

// Returns whether a link that has been authenticated may be used now: since the handshake began,
// the peer may have been lost, or may have connected in another way.
bool TcpTransport::may_attach(int link, int fd) {
  const int peer = peer_of(link);
  if (lane(link).is_live() || lane(link).is_lost() || lane(peer).is_lost()) return false;
  if (link != peer && is_live(peer) && lane(peer).uses_shared_memory()) return false;
  const bool shares = link == peer && host_peers_.shares_with(peer);
  if (!is_unix_socket(fd) || shares) return true;
  log_rejection("this rank dropped a Unix socket connection of rank " + std::to_string(peer) +
                ": such connections are only for ranks that share memory with this rank");
  return false;
}

void TcpTransport::log_rejection(const std::string& line) {
  if (num_rejection_lines_ >= kMaxRejectionLines) {
    ++num_unlogged_rejections_;
    return;
  }
  ++num_rejection_lines_;
  log(line);
}

}  // namespace smdist
