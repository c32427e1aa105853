// SPDX-License-Identifier: Apache-2.0
// Lanes of TcpTransport whose connection has ended and that continue over another one.
//
// The rank that dials such a lane does so at once. A refusal means that the peer's process has
// ended, which is reported with the reason of the end. The rank that does not dial checks meanwhile
// whether the peer still listens; the peer then checks its lanes, so that it finds out, too, if
// only one side has noticed the end. A lane without a connection for the time of silence is lost,
// also if the peer's kernel answers: a peer must not keep others waiting by closing connections.
//
// A peer is silent if its kernel answers on none of its lanes. One lane alone may be silent for
// longer: it repeats a lost packet every few seconds only, and so misses the moment between two
// interruptions in which another lane was answered; or a firewall drops the packets of this one.
#include <algorithm>
#include <utility>

#include "transport/ended_hosts.h"
#include "transport/silence.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kLogResumptionsEvery{10'000};

// Bytes that a rank keeps at most for each lane number, over all peers; and that a lane keeps: as
// many as the largest send buffer of a socket has by default (net.ipv4.tcp_wmem).
constexpr uint64_t kMostKept = 512 << 20;
constexpr uint64_t kMostKeptOfLane = 4 << 20;

// Idle connections are probed once another one to the same peer has been silent for this part of
// the time of silence.
constexpr int kPartBeforeProbes = 4;

}  // namespace

// Ends the connection of a link: for good, or until the lane continues. A silent connection
// continues only if the peer has answered over another one meanwhile.
void TcpTransport::end_link(int link, const std::string& reason) {
  const int peer = peer_of(link);
  const Clock::time_point now = Clock::now();
  const bool is_silent = lane(link).is_silent();
  const Clock::time_point since = is_silent ? last_answer(peer) : now;
  if (is_silent && now - since >= options_.silence) return lose(peer, reason);
  const bool may_continue =
      sink_ != nullptr && lane(link).may_resume() && sink_->may_reconnect(peer);
  if (!may_continue) return lose_link(link, reason);
  interrupt(link, reason, since);
}

// Lets a lane wait for another connection, until the time of silence after `since` is over.
void TcpTransport::interrupt(int link, const std::string& reason, Clock::time_point since) {
  const int peer = peer_of(link);
  const Clock::time_point now = Clock::now();
  unwatch(lane(link).fd());
  blocked_.erase(link);
  interruptions_[link] = {since, reason, false};
  lane(link).interrupt(sink_);
  if (dials(peer)) {
    dial_schedule_.add(link, now, kRefusalsOfCrashedPeer);
  } else {
    awaited_peers_[peer] = {now, 0};
  }
  wake_at(now);
}

// Records that the kernel of a peer has answered.
void TcpTransport::heard_from(int peer) {
  for (auto& [link, each] : interruptions_) {
    if (peer_of(link) == peer) each.is_heard = true;
  }
}

// Returns why a connection to the peer has ended that waits for another one; none if all are there.
std::optional<std::string> TcpTransport::end_of(int peer) const {
  for (const auto& [link, each] : interruptions_) {
    if (peer_of(link) == peer) return each.reason;
  }
  return std::nullopt;
}

// Returns whether a rank that has proved to know the secret may open a link, for the first time or
// again. If it has given up its connection and this rank has not noticed, interrupts the lane.
bool TcpTransport::may_continue(int link, const Hello& hello) {
  Lane& existing = lane(link);
  if (existing.is_lost() || !existing.can_resume_from(hello.received)) return false;
  if (!existing.has_lived()) return true;
  const auto known = engines_.find(peer_of(link));
  if (known == engines_.end() || known->second != hello.engine) return false;
  if (existing.uses_shared_memory()) return false;
  if (existing.is_live()) interrupt(link, "closed its connection", Clock::now());
  heard_from(peer_of(link));
  return true;
}

// Lets a lane begin, or continue, over a connection that is authenticated.
void TcpTransport::continue_lane(int link, UniqueFd fd, const AuthHandshake& auth,
                                 const LaneKeys& keys) {
  const int peer = peer_of(link);
  Lane& continued = lane(link);
  if (!continued.can_resume_from(auth.peer_received())) {
    unwatch(fd.get());
    return lose(peer, "continues a connection at a byte that this rank has not sent, or not kept");
  }
  if (!auth.is_dialling()) engines_.try_emplace(peer, auth.engine());
  set_peer_options(fd.get(), options_.silence);
  end_interruption(link);
  continued.make_resumable(
      std::min(kMostKeptOfLane, kMostKept / static_cast<uint64_t>(options_.size)));
  continued.resume(std::move(fd), auth.peer_received());
  continued.protect(options_.protection, keys);
  continued.widen_receive_buffer(arriving_bytes_per_lane());
  dirty_.insert(link);  // TLS begins at once, also without a message
}

void TcpTransport::end_interruption(int link) {
  const int peer = peer_of(link);
  const auto found = interruptions_.find(link);
  if (found == interruptions_.end()) return;
  const Interruption ended = found->second;
  interruptions_.erase(found);
  if (end_of(peer)) return;
  awaited_peers_.erase(peer);
  log_resumption(peer, ended);
}

void TcpTransport::log_resumption(int peer, const Interruption& ended) {
  const Clock::time_point now = Clock::now();
  if (now < next_resumption_line_) return;
  next_resumption_line_ = now + kLogResumptionsEvery;
  const auto lasted = std::chrono::duration_cast<std::chrono::milliseconds>(now - ended.since);
  log("rank " + std::to_string(peer) + " " + ended.reason + "; after " + duration_text(lasted) +
      " another connection continues it, and nothing is lost. This line is not repeated for " +
      duration_text(kLogResumptionsEvery));
}

// Ends connections over which the peer's kernel has answered nothing for too long.
void TcpTransport::check_silent_links(Clock::time_point now) {
  if (!std::exchange(may_await_answers_, false)) return;
  for (int link = 0; link < num_links(); ++link) {
    if (!is_live(link) || lane(link).uses_shared_memory()) continue;
    const Lane::Loss loss = lane(link).check_silence(now);
    if (loss) {
      end_link(link, *loss);
    } else if (lane(link).may_await_answer()) {
      may_await_answers_ = true;
      if (lane(link).silence() >= options_.silence / kPartBeforeProbes) probe_idle_links(link);
    }
  }
}

// Lets idle connections to the peer of a silent one send something, so that they get an answer if
// the peer's kernel is there.
void TcpTransport::probe_idle_links(int silent) {
  for (int link = peer_of(silent); link < num_links(); link += options_.size) {
    if (!is_live(link) || lane(link).may_await_answer()) continue;
    lane(link).probe();
    dirty_.insert(link);
  }
}

// Returns when the kernel of a peer was last known to have answered, over any of its connections.
TcpTransport::Clock::time_point TcpTransport::last_answer(int peer) const {
  Clock::time_point last{};
  for (int link = peer; link < num_links(); link += options_.size) {
    const Lane* const found = find_lane(link);
    if (found != nullptr && found->is_live()) last = std::max(last, found->last_answer());
  }
  return last;
}

std::string TcpTransport::loss_of(const Interruption& interruption) const {
  if (!interruption.is_heard) return silence_text(options_.silence);
  return interruption.reason + ", and there has been no other one for " +
         duration_text(options_.silence);
}

void TcpTransport::check_interruptions(Clock::time_point now) {
  if (interruptions_.empty()) return;
  lose_ranks_of_ended_hosts();
  for (const auto& [link, each] : interruptions_) {
    if (now - each.since < options_.silence) continue;
    return lose(peer_of(link), loss_of(each));  // the next check has the others
  }
}

// Loses the peers whose launcher has ended, too: their network may have gone with them, so that no
// dial would be refused.
void TcpTransport::lose_ranks_of_ended_hosts() {
  const std::set<std::string> hosts = read_ended_hosts(options_.ended_hosts_file);
  if (hosts.empty()) return;
  std::map<int, std::string> ended;
  for (const auto& [link, each] : interruptions_) {
    const int peer = peer_of(link);
    if (hosts.count(peers_[static_cast<size_t>(peer)].host) > 0) ended.emplace(peer, each.reason);
  }
  for (const auto& [peer, reason] : ended) {
    lose(peer, reason + " (the launcher of its host has ended, too)");
  }
}

// Lets lanes to the ranks of a host send something, because one of these ranks has checked whether
// this one is alive: it may have lost a connection that this rank still has.
void TcpTransport::probe_lanes(const std::string& host) {
  const Clock::time_point now = Clock::now();
  if (now < next_probe_) return;
  next_probe_ = now + kTick;
  for (int link = 0; link < num_links(); ++link) {
    const int peer = peer_of(link);
    const bool is_of_host =
        dials(peer) && is_live(link) && peers_[static_cast<size_t>(peer)].host == host;
    if (!is_of_host || lane(link).uses_shared_memory()) continue;
    lane(link).probe();
    dirty_.insert(link);
  }
}

void TcpTransport::detach_payloads(const Span& memory) {
  for (const int link : referring_) lane(link).detach_payloads(memory);
}

}  // namespace smdist
