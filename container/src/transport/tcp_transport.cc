// SPDX-License-Identifier: Apache-2.0
// Events and lanes of TcpTransport; tcp_connections.cc has the connections.
#include "transport/tcp_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/random.h"
#include "smdist/errors.h"
#include "transport/fd_passing.h"
#include "transport/open_files.h"
#include "transport/socket.h"

namespace smdist {

using std::chrono::milliseconds;

namespace {

bool is_socket(int fd, unsigned long inode) {
  struct stat what{};
  return ::fstat(fd, &what) == 0 && S_ISSOCK(what.st_mode) && what.st_ino == inode;
}

}  // namespace

TcpTransport::TcpTransport(const Options& options)
    : options_(options),
      credentials_{options.secret, options.session, options.protection},
      tuning_(options.tuning),
      lanes_that_may_come_(options.max_lanes),
      lanes_that_fit_(options.max_lanes),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      listener_(listen_on(options.bind_address)),
      host_peers_(options),
      dial_schedule_(options.size, options.start_timeout, static_cast<uint32_t>(options.rank)) {
  raise_open_files_limit();
  fill_with_random(engine_number_.data(), engine_number_.size());
  if (!epoll_.is_open() || !wake_.is_open())
    throw SystemError("an event queue could not be created", errno);
  endpoint_ = local_endpoint(listener_.get());
  watch(wake_.get(), EPOLLIN, cookie(EventSource::kWake, 0), true);
  open_arena();
  limit_receive_buffer(listener_.get(), arriving_bytes_per_lane());
  watch_listeners(EPOLLIN, true);
  ensure_lanes(tuning_.lanes);
}

// Creates the arena. If that fails, the ranks of the host use TCP.
void TcpTransport::open_arena() {
  std::array<uint8_t, 16> random;
  fill_with_random(random.data(), random.size());
  std::string name = "smdist-";
  for (const uint8_t byte : random) name += "0123456789abcdef"[byte % 16];
  try {
    host_peers_.open();
    if (!host_peers_.is_open()) return;
    local_listener_ = listen_unix(name);
    endpoint_.local = name;
  } catch (const SystemError& error) {
    host_peers_.close();
    log(std::string("the ranks of this host use TCP instead of shared memory: ") + error.what());
  }
}

void TcpTransport::start(const std::vector<Endpoint>& peers, Sink* sink) {
  for (const Endpoint& peer : peers) Address(peer.host, peer.port);  // throws if it is not numeric
  peers_ = peers;
  sink_ = sink;
  accept_limits_.set_ranks(peers, options_);
  count_files();
}

void TcpTransport::send(int peer, Message message) {
  const int link = link_of(peer, message.lane);
  lane(link).send(std::move(message));
  dirty_.insert(link);
}

uint32_t TcpTransport::num_lanes(int peer) {
  uint32_t number = 1;
  for (; number < used_lanes(); ++number) {
    const Lane* const extra = find_lane(link_of(peer, number));
    if (extra == nullptr || !extra->has_lived()) break;
  }
  return number;
}

Lane& TcpTransport::lane(int link) {
  std::unique_ptr<Lane>& found = lanes_[static_cast<size_t>(link)];
  if (!found) found = std::make_unique<Lane>(peer_of(link), number_of(link), options_.silence);
  return *found;
}

const Lane* TcpTransport::find_lane(int link) const {
  return link < num_links() ? lanes_[static_cast<size_t>(link)].get() : nullptr;
}

void TcpTransport::ensure_lanes(uint32_t lanes) {
  const size_t links = static_cast<size_t>(options_.size) * lanes;
  if (lanes_.size() < links) lanes_.resize(links);
}

void TcpTransport::connect(int peer) {
  wanted_.insert(peer);
  dirty_.insert(peer);
}

void TcpTransport::release_payloads(const HeaderFilter& is_chosen) {
  for (const auto& each : lanes_) {
    if (each) each->release_payloads(is_chosen);
  }
}

void TcpTransport::wake() {
  const uint64_t one = 1;
  // write() fails only if the counter is full, and then a wake-up is pending already.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void TcpTransport::clear_wake() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

void TcpTransport::poll(milliseconds timeout) {
  flush();
  await_before_poll(max_await(timeout), spin_policy_);
  read_rings();  // read messages of a peer before the end of its connection
  take_events();
  read_rings();
  flush();
  waits_for_network_ = waits_for_network();
  if (Clock::now() >= next_check_) check_times();
}

// ---------------------------------------------------------------------- events

void TcpTransport::watch(int fd, uint32_t events, uint64_t what, bool is_new) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  if (::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0) {
    throw SystemError("the system call epoll_ctl failed for a connection of this rank", errno);
  }
}

// Removes a descriptor from epoll. Closing it is not enough: while a forked child has a copy of the
// connection, epoll would continue to report it.
void TcpTransport::unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

milliseconds TcpTransport::max_await(milliseconds timeout) const {
  const bool has_work =
      std::any_of(dirty_.begin(), dirty_.end(), [this](int link) { return is_live(link); });
  if (has_work) return milliseconds(0);
  if (!has_timers() && !may_await_answers_) return timeout;
  const auto left = std::chrono::duration_cast<milliseconds>(next_check_ - Clock::now());
  return std::clamp(left + milliseconds(1), milliseconds(0), std::min(timeout, kTick));
}

bool TcpTransport::has_timers() const {
  return !handshakes_.empty() || !dial_schedule_.is_empty() || !awaited_peers_.empty() ||
         !failing_peers_.empty() || !interruptions_.empty() || !is_listening_;
}

bool TcpTransport::is_quiet() const {
  return dirty_.empty() && blocked_.empty() && wanted_.empty() && !has_timers();
}

// Blocks until there is an event. Several threads may wait here, but only one at a time processes
// events. A thread may wake up for an event that another thread has already processed, which is
// harmless.
void TcpTransport::await(milliseconds timeout, SpinPolicy& policy) {
  await_by([this](milliseconds time) { return has_events(time); }, timeout, policy);
}

// Also fetches the events. epoll reports them again if they are not handled before the next call.
void TcpTransport::await_before_poll(milliseconds timeout, SpinPolicy& policy) {
  if (num_events_ > 0) return;
  await_by([this](milliseconds time) { return fetch_events(time); }, timeout, policy);
}

// Blocks until look(timeout) returns true, or until a ring buffer has events.
template <typename Look>
void TcpTransport::await_by(const Look& look, milliseconds timeout, SpinPolicy& policy) {
  if (timeout.count() <= 0 || host_peers_.has_events()) return;
  if (should_spin(policy) && spin(look, policy)) return;
  const SharedMemoryPeers::ScopedSleepFlag asleep(host_peers_);
  if (!host_peers_.has_events()) look(timeout);
}

// Fetches events for take_events(). Returns whether there are any. An error counts as an event:
// take_events() meets it again and reports it.
bool TcpTransport::fetch_events(milliseconds timeout) {
  // A thread that sleeps in epoll_wait() is woken with the hint that the waker will sleep soon.
  // Where processes share a processor, that is late: poll() has no such hint.
  if (timeout.count() > 0 && !has_events(timeout)) return false;
  const int count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
  num_events_ = static_cast<size_t>(std::max(count, 0));
  return count != 0;
}

// Handles the events that have been fetched; if there are none, those that there are now.
void TcpTransport::take_events() {
  if (num_events_ == 0 && fetch_events(milliseconds(0)) && num_events_ == 0 && errno != EINTR) {
    throw SystemError("waiting for network events failed", errno);
  }
  const size_t count = std::exchange(num_events_, 0);
  for (size_t i = 0; i < count; ++i) handle(events_[i].data.u64, events_[i].events);
}

// Returns whether epoll has events. An error counts as an event: take_events() reports it.
bool TcpTransport::has_events(milliseconds timeout) const {
  pollfd what{epoll_.get(), POLLIN, 0};
  return ::poll(&what, 1, static_cast<int>(timeout.count())) != 0;
}

// Returns whether to spin before sleeping. After several spins without an event, only every 16th
// wait spins.
bool TcpTransport::should_spin(SpinPolicy& policy) const {
  constexpr uint32_t kMaxFailedSpins = 4;
  constexpr uint32_t kSpinEvery = 16;
  if (options_.pause.count() == 0 || waits_for_network_) return false;
  return policy.num_failed < kMaxFailedSpins || ++policy.num_skipped % kSpinEvery == 0;
}

// Returns whether this rank waits for a long payload from the network, with no peer in shared
// memory.
bool TcpTransport::waits_for_network() const {
  if (options_.pause.count() == 0 || host_peers_.is_open()) return false;
  return !blocked_.empty() || std::any_of(lanes_.begin(), lanes_.end(), [](const auto& each) {
    return each && each->awaits_bulk_data();
  });
}

template <typename Look>
bool TcpTransport::spin(const Look& look, SpinPolicy& policy) const {
  constexpr int kChecks = 32;  // checks between two system calls
  const Clock::time_point end = Clock::now() + options_.pause;
  bool is_there = false;
  while (!is_there && Clock::now() < end) {
    is_there = host_peers_.has_events() || look(milliseconds(0));
    for (int check = 0; check < kChecks && !is_there; ++check) is_there = host_peers_.has_events();
    if (!is_there) ::sched_yield();  // another process that was woken may need this processor
  }
  policy.num_failed = is_there ? 0 : policy.num_failed + 1;
  return is_there;
}

// Processes one event. Its source may have been closed by an earlier event of the same batch.
void TcpTransport::handle(uint64_t what, uint32_t events) {
  const uint64_t number = what >> 2;
  switch (static_cast<EventSource>(what & 3)) {
    case EventSource::kWake:
      return;  // stays readable until clear_wake()
    case EventSource::kListener:
      return accept_all();
    case EventSource::kHandshake:
      return advance(number);
    case EventSource::kLane: {
      const int link = static_cast<int>(number);
      if (lane(link).is_live() && (events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_from(link);
      if (lane(link).is_live() && (events & EPOLLOUT) != 0) {
        watch(lane(link).fd(), EPOLLIN, what, false);
        blocked_.erase(link);
        dirty_.insert(link);
      }
      return;
    }
  }
}

// Writes to each lane that has messages. A lane that blocks is written to again when epoll reports
// it, an unconnected lane when it is connected.
void TcpTransport::flush() {
  for (const int link : std::exchange(dirty_, {})) {
    const bool is_wanted = wanted_.erase(link) > 0;
    if (lane(link).is_lost()) continue;
    if (lane(link).is_live()) {
      write_to(link);
    } else if (lane(link).has_work() || is_wanted) {
      connect_link(link);
    }
  }
  start_dials();
}

void TcpTransport::write_to(int link) {
  bool would_block = false;
  may_await_answers_ = true;
  referring_.insert(link);  // before messages are reported as sent, whose operations may end then
  const Lane::Loss loss = lane(link).write_some(sink_, &would_block);
  if (!lane(link).has_references()) referring_.erase(link);
  if (loss) {
    read_from(link);  // deliver what the peer sent before it ended
    if (lane(link).is_live()) end_link(link, *loss);
  } else if (would_block && (lane(link).uses_shared_memory() || lane(link).awaits_peer())) {
    dirty_.erase(link);
    blocked_.insert(link);
  } else if (would_block) {
    watch(lane(link).fd(), EPOLLIN | EPOLLOUT,
          cookie(EventSource::kLane, static_cast<uint64_t>(link)), false);
    dirty_.erase(link);
    blocked_.insert(link);
  } else if (lane(link).has_work()) {
    dirty_.insert(link);
  }
}

void TcpTransport::read_from(int link) {
  const bool awaited_peer = lane(link).awaits_peer();
  const Lane::Loss loss = lane(link).read_some(sink_);
  if (loss) return end_link(link, *loss);
  const bool may_send_now = awaited_peer && !lane(link).awaits_peer();
  if (may_send_now) blocked_.erase(link);  // the TLS handshake is finished, or bytes acknowledged
  const bool has_more = lane(link).has_unsent_bytes() || lane(link).owes_acknowledgement();
  if (may_send_now || has_more) dirty_.insert(link);
  if (lane(link).uses_shared_memory()) unblock(link);
}

void TcpTransport::read_rings() {
  for (const int peer : host_peers_.peers()) {
    if (!host_peers_.ring(peer).has_events() || !lane(peer).is_live()) continue;
    const Lane::Loss loss = lane(peer).read_ring(sink_);
    if (loss) {
      lose_link(peer, *loss);
    } else {
      unblock(peer);
    }
  }
}

// Lets a blocked lane write again, and stops treating free space in its ring buffer as an event,
// because its messages may have been written meanwhile.
void TcpTransport::unblock(int link) {
  host_peers_.ring(peer_of(link)).forget_space();
  if (blocked_.erase(link) > 0) dirty_.insert(link);
}

void TcpTransport::drop(int link) {
  if (lane(link).is_live()) unwatch(lane(link).fd());
  blocked_.erase(link);
  lane(link).lose(sink_);
}

// Drops one lane. The lanes of a process that ends break one after the other, so the peer counts as
// lost after the last one, or one second after the first one.
void TcpTransport::lose_link(int link, const std::string& reason) {
  constexpr milliseconds kOtherLanesTime{1'000};
  const int peer = peer_of(link);
  drop(link);
  bool is_any_left = false;
  for (int other = peer; other < num_links(); other += options_.size) {
    is_any_left = is_any_left || is_live(other);
  }
  if (!is_any_left)
    return lose(peer, failing_peers_.count(peer) > 0 ? failing_peers_[peer].second : reason);
  failing_peers_.try_emplace(peer, Clock::now() + kOtherLanesTime, reason);
}

void TcpTransport::lose(int peer, const std::string& text) {
  const std::string reason = text;  // a copy, because `text` may belong to an erased entry
  for (int link = peer; link < num_links(); link += options_.size) {
    if (link == peer || find_lane(link) != nullptr) drop(link);
    dial_schedule_.remove(link);
    interruptions_.erase(link);
  }
  awaited_peers_.erase(peer);
  failing_peers_.erase(peer);
  if (sink_ != nullptr) sink_->on_peer_lost(peer, reason);
}

// ------------------------------------------------------------------------- end

bool TcpTransport::has_live_lanes() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& each) { return each && each->is_live(); });
}

// Sends all queued messages, shuts down writing, and then reads until the peers close, too. Closing
// with unread bytes would reset the connection, and the peer might lose the last messages.
void TcpTransport::close(milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  sink_ = nullptr;
  handshakes_.clear();
  dial_schedule_.clear();
  awaited_peers_.clear();
  failing_peers_.clear();
  interruptions_.clear();
  for (const auto& each : lanes_) {
    if (each) each->end_resuming();
  }
  listener_.reset();
  local_listener_.reset();
  std::set<int> ended;
  while (has_live_lanes() && Clock::now() < end) {
    flush();
    for (int link = 0; link < num_links(); ++link) {
      const Lane* const each = find_lane(link);
      const bool is_silent = each != nullptr && each->is_live() && !each->has_work();
      if (is_silent && ended.insert(link).second) lane(link).end_writing();
    }
    await(std::min(milliseconds(20), limit), spin_policy_);
    take_events();
    read_rings();
  }
  for (const auto& each : lanes_) {
    if (!each) continue;
    if (each->is_live()) unwatch(each->fd());
    each->lose(nullptr);
  }
}

// Closes all sockets that epoll watches. /proc lists them without locking a mutex. The list is that
// of the parent: a descriptor that the parent has opened after the fork may be a different file
// here, so inodes are compared.
void TcpTransport::close_in_child() noexcept {
  constexpr const char* kEntry = "tfd: %d events: %*x data: %*x pos:%*d ino:%lx";
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll_.get());
  if (std::FILE* list = std::fopen(path, "re")) {
    char line[256];
    int fd = -1;
    unsigned long inode = 0;
    while (std::fgets(line, sizeof line, list) != nullptr) {
      if (std::sscanf(line, kEntry, &fd, &inode) == 2 && is_socket(fd, inode)) ::close(fd);
    }
    std::fclose(list);
  }
  ::close(epoll_.get());
  ::close(wake_.get());
  if (host_peers_.fd() >= 0) ::close(host_peers_.fd());
}

void TcpTransport::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace smdist
