// SPDX-License-Identifier: Apache-2.0
// How connections come to be, and what strangers get.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "smdist/errors.h"
#include "transport/handover.h"
#include "transport/socket.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxStrangers = 64;              // connections that nobody vouches for yet
constexpr milliseconds kStrangerPatience{5'000};  // how long each of them may take
constexpr milliseconds kPatienceInACrowd{250};
constexpr int kMaxStrangerLines = 16;  // per tick; a flood must not fill the disk
constexpr milliseconds kProbeEvery{1'000};

}  // namespace

void TcpTransport::dial(int link) {
  const int peer = peer_of(link);
  const auto number = static_cast<uint32_t>(link / options_.size);
  if (!dials(peer)) {
    awaited_.emplace(peer, Clock::now() + kProbeEvery);
    return;
  }
  for (const auto& [_, greeting] : greetings_) {
    if (greeting.is_dialling() && greeting.peer() == peer && greeting.lane() == number) return;
  }
  try {
    UniqueFd fd = begin_dialling(link);
    const int raw = fd.get();
    const uint64_t name = ++last_greeting_;
    greetings_.emplace(
        name, Greeting::dialling(std::move(fd), credentials_, options_.rank, peer, number));
    watch(raw, EPOLLOUT, cookie(Subject::kGreeting, name), true);
  } catch (const SystemError& error) {
    if (number > 0) return log(std::string("goes on with fewer lanes: ") + error.what());
    lose(peer, std::string("could not be dialled: ") + error.what());
  }
}

void TcpTransport::dial_more_lanes(int peer) {
  if (!dials(peer) || !lane(peer).is_live() || lane(peer).is_local()) return;
  for (uint32_t number = 1; number < tuning_.lanes; ++number) {
    if (!lane(link_of(peer, number)).has_lived()) dial(link_of(peer, number));
  }
}

// Memory is handed over on lane 0 alone.
UniqueFd TcpTransport::begin_dialling(int link) {
  const int peer = peer_of(link);
  const Endpoint& to = peers_[static_cast<size_t>(peer)];
  if (neighbours_.shares_with(peer) && link == peer && !to.local.empty()) {
    UniqueFd fd = connect_locally(to.local);
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
    const auto strangers = static_cast<size_t>(
        std::count_if(greetings_.begin(), greetings_.end(),
                      [](const auto& each) { return !each.second.is_dialling(); }));
    if (strangers >= kMaxStrangers && !drop_strangers(kPatienceInACrowd)) {
      return listen_later();  // the others wait in the kernel
    }
    UniqueFd fd;
    try {
      fd = accept_from(listener);
    } catch (const SystemError& error) {  // such as too many open files: may pass
      log(error.what());
      return listen_later();
    }
    if (!fd.is_open()) return;
    const int raw = fd.get();
    const uint64_t number = ++last_greeting_;
    auto admitting = [this](const Hello& hello) { return admit(hello); };
    greetings_.emplace(number, Greeting::accepting(std::move(fd), credentials_, admitting));
    watch(raw, EPOLLIN, cookie(Subject::kGreeting, number), true);
    advance(number);
  }
}

void TcpTransport::watch_listeners(uint32_t events, bool is_new) {
  watch(listener_.get(), events, cookie(Subject::kListener, 0), is_new);
  if (local_listener_.is_open()) {
    watch(local_listener_.get(), events, cookie(Subject::kListener, 0), is_new);
  }
}

void TcpTransport::listen_later() {
  watch_listeners(0, false);
  is_listening_ = false;
}

void TcpTransport::listen_again() {
  if (is_listening_) return;
  watch_listeners(EPOLLIN, false);
  is_listening_ = true;
}

std::string TcpTransport::admit(const Hello& hello) {
  const auto rank = static_cast<uint32_t>(options_.rank);
  if (hello.wanted != rank) return "it looks for rank " + std::to_string(hello.wanted);
  if (hello.rank <= rank || hello.rank >= lanes_.size()) {
    return "it says that it is rank " + std::to_string(hello.rank);
  }
  if (hello.lane >= kMaxLanes) return "it wants lane " + std::to_string(hello.lane);
  make_room_for(hello.lane + 1);
  const Lane& existing = lane(link_of(static_cast<int>(hello.rank), hello.lane));
  const bool is_known = existing.is_live() || existing.is_lost();
  return is_known ? "rank " + std::to_string(hello.rank) + " has been connected before" : "";
}

void TcpTransport::advance(uint64_t number) {
  const auto found = greetings_.find(number);
  if (found == greetings_.end()) return;
  Greeting& greeting = found->second;
  if (probes_.count(number) > 0) {
    const int peer = probes_[number];
    const bool is_dead = connect_error(greeting.fd()) == ECONNREFUSED;
    probes_.erase(number);
    end_greeting(found);
    if (is_dead) lose(peer, "refused the connection: its process has ended");
    return;
  }
  switch (greeting.advance()) {
    case Greeting::Outcome::kWaiting:
      return watch(greeting.fd(), greeting.wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN,
                   cookie(Subject::kGreeting, number), false);
    case Greeting::Outcome::kTrusted:
      return trust(found);
    case Greeting::Outcome::kFailed:
      return give_up(found);
  }
}

void TcpTransport::trust(Greetings::iterator greeting) {
  const int peer = greeting->second.peer();
  const int link = link_of(peer, greeting->second.lane());
  UniqueFd fd = greeting->second.take_fd();
  greetings_.erase(greeting);
  listen_again();
  // Two connections may have greeted at the same time; the first one counts.
  if (lane(link).is_live() || lane(link).is_lost() || lane(peer).is_lost()) return;
  const bool shares = link == peer && neighbours_.shares_with(peer);
  if (is_local(fd.get()) && !shares) return log("dropped a local connection that has no ring");
  watch(fd.get(), EPOLLIN, cookie(Subject::kLane, static_cast<uint64_t>(link)), false);
  if (is_local(fd.get())) {
    lane(link).attach_local(std::move(fd), neighbours_.fd(), neighbours_.ring(peer));
  } else {
    smdist::tune(fd.get());
    lane(link).attach(std::move(fd));
    lane(link).widen_arrivals(arriving_bytes_per_lane());
  }
  if (link != peer) return;
  awaited_.erase(peer);
  if (sink_ != nullptr) sink_->on_connected(peer);
  dirty_.insert(peer);
  dial_more_lanes(peer);
}

void TcpTransport::tune(const Tuning& tuning) {
  tuning_ = tuning;
  make_room_for(tuning.lanes);
  const size_t arriving = arriving_bytes_per_lane();
  limit_arrivals(listener_.get(), arriving);
  for (Lane& each : lanes_) {
    if (each.is_live() && !each.is_local()) each.widen_arrivals(arriving);
  }
  for (int peer = 0; peer < options_.size; ++peer) dial_more_lanes(peer);
}

// What arrives at a host comes from every other host to every rank on it.
size_t TcpTransport::arriving_bytes_per_lane() const {
  if (tuning_.arriving_bytes == 0) return 0;
  const std::vector<int>& hosts = options_.hosts;
  const std::set<int> names(hosts.begin(), hosts.end());
  if (names.size() < 2) return 0;
  const auto here = static_cast<size_t>(
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(options_.rank)]));
  return std::max(size_t{1}, tuning_.arriving_bytes / (here * (names.size() - 1) * tuning_.lanes));
}

void TcpTransport::give_up(Greetings::iterator greeting) {
  const std::string fault = greeting->second.fault();
  const bool is_dialling = greeting->second.is_dialling();
  const int peer = greeting->second.peer();
  // Who comes and goes without a word was only looking whether we live.
  if (!is_dialling && !greeting->second.is_silent()) {
    log_stranger("dropped a connection from " + peer_text(greeting->second.fd()) + ": " + fault);
  }
  const bool is_spare = greeting->second.lane() > 0;
  end_greeting(greeting);
  listen_again();
  if (is_dialling && is_spare) return log("goes on with fewer lanes: a peer " + fault);
  if (is_dialling) lose(peer, fault);
}

TcpTransport::Greetings::iterator TcpTransport::end_greeting(Greetings::iterator greeting) {
  unwatch(greeting->second.fd());
  return greetings_.erase(greeting);
}

// Drops who was accepted and has not vouched for itself in time.
bool TcpTransport::drop_strangers(Clock::duration patience) {
  const Clock::time_point now = Clock::now();
  bool is_any = false;
  for (auto it = greetings_.begin(); it != greetings_.end();) {
    const Greeting& greeting = it->second;
    if (greeting.is_dialling() || now - greeting.begin() <= patience) {
      ++it;
      continue;
    }
    const auto ms = std::chrono::duration_cast<milliseconds>(patience).count();
    log_stranger("dropped a connection from " + peer_text(greeting.fd()) +
                 ": it took longer than " + std::to_string(ms) + " ms");
    it = end_greeting(it);
    is_any = true;
  }
  return is_any;
}

void TcpTransport::log_stranger(const std::string& line) {
  if (++num_stranger_lines_ <= kMaxStrangerLines) log(line);
}

void TcpTransport::check_times() {
  const Clock::time_point now = Clock::now();
  next_check_ = now + kTick;
  if (num_stranger_lines_ > kMaxStrangerLines) {
    log("dropped " + std::to_string(num_stranger_lines_ - kMaxStrangerLines) + " more connections");
  }
  num_stranger_lines_ = 0;
  listen_again();
  drop_strangers(kStrangerPatience);
  for (auto it = torn_.begin(); it != torn_.end();) {
    const auto [peer, end] = *it++;  // before it is forgotten
    if (end.first <= now) lose(peer, end.second);
  }
  for (auto& [peer, when] : awaited_) {
    if (when > now) continue;
    when = now + kProbeEvery;
    probe(peer);
  }
}

// Connects as one who dials, but only to see whether somebody listens.
void TcpTransport::probe(int peer) {
  for (const auto& [number, probed] : probes_) {
    if (probed == peer) return;
  }
  try {
    UniqueFd fd = begin_connect(options_.bind_address, peers_[static_cast<size_t>(peer)], 0);
    const int raw = fd.get();
    const uint64_t number = ++last_greeting_;
    greetings_.emplace(number,
                       Greeting::dialling(std::move(fd), credentials_, options_.rank, peer));
    probes_[number] = peer;
    watch(raw, EPOLLOUT, cookie(Subject::kGreeting, number), true);
  } catch (const SystemError& error) {
    log(std::string("rank ") + std::to_string(peer) + " could not be probed: " + error.what());
  }
}

}  // namespace smdist
