// SPDX-License-Identifier: Apache-2.0
// Events and lanes; how connections come to be is in tcp_connections.cc.
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
#include "transport/handover.h"
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
      credentials_{options.secret, options.session},
      tuning_(options.tuning),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      listener_(listen_on(options.bind_address)),
      neighbours_(options) {
  if (!epoll_.is_open() || !wake_.is_open()) throw SystemError("no event queue", errno);
  endpoint_ = local_endpoint(listener_.get());
  watch(wake_.get(), EPOLLIN, cookie(Subject::kWake, 0), true);
  open_arena();
  limit_arrivals(listener_.get(), arriving_bytes_per_lane());
  watch_listeners(EPOLLIN, true);
  make_room_for(tuning_.lanes);
}

// Without one the ranks of a host talk by TCP, which always works.
void TcpTransport::open_arena() {
  std::array<uint8_t, 16> random;
  fill_with_random(random.data(), random.size());
  std::string name = "smdist-";
  for (const uint8_t byte : random) name += "0123456789abcdef"[byte % 16];
  try {
    neighbours_.open();
    if (!neighbours_.is_open()) return;
    local_listener_ = listen_locally(name);
    endpoint_.local = name;
  } catch (const SystemError& error) {
    neighbours_.close();
    log(std::string("ranks of this host do not share memory: ") + error.what());
  }
}

void TcpTransport::start(const std::vector<Endpoint>& peers, Sink* sink) {
  for (const Endpoint& peer : peers) Address(peer.host, peer.port);  // throws if it is none
  peers_ = peers;
  sink_ = sink;
}

void TcpTransport::send(int peer, Message message) {
  const int link = link_of(peer, message.lane);
  lane(link).send(std::move(message));
  dirty_.insert(link);
}

uint32_t TcpTransport::num_lanes(int peer) {
  uint32_t number = 1;
  while (number < tuning_.lanes && lane(link_of(peer, number)).has_lived()) ++number;
  return number;
}

void TcpTransport::make_room_for(uint32_t lanes) {
  const size_t links = static_cast<size_t>(options_.size) * lanes;
  while (lanes_.size() < links) lanes_.emplace_back(peer_of(static_cast<int>(lanes_.size())));
}

void TcpTransport::connect(int peer) {
  wanted_.insert(peer);
  dirty_.insert(peer);
}

void TcpTransport::release_payloads() {
  for (Lane& each : lanes_) each.release_payloads();
}

void TcpTransport::wake() {
  const uint64_t one = 1;
  // Can only fail if the counter is full, and then a wake-up is on its way.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void TcpTransport::clear_wake() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

void TcpTransport::poll(milliseconds timeout) {
  flush();
  await(patience(timeout), looking_);
  read_rings();  // what a peer said before it went comes before its end
  take_events();
  read_rings();
  flush();
  waits_for_wire_ = waits_for_wire();
  if (Clock::now() >= next_check_) check_times();
}

// ---------------------------------------------------------------------- events

void TcpTransport::watch(int fd, uint32_t events, uint64_t what, bool is_new) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  if (::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0) {
    throw SystemError("a connection could not be watched", errno);
  }
}

// Closing is not enough: while a forked child has a copy of the connection, epoll
// would go on telling of it.
void TcpTransport::unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

milliseconds TcpTransport::patience(milliseconds timeout) const {
  const bool has_work = std::any_of(dirty_.begin(), dirty_.end(), [this](int peer) {
    return lanes_[static_cast<size_t>(peer)].is_live();
  });
  if (has_work) return milliseconds(0);
  return has_timers() ? std::min(timeout, kTick) : timeout;
}

bool TcpTransport::has_timers() const {
  return !greetings_.empty() || !awaited_.empty() || !torn_.empty() || !is_listening_;
}

bool TcpTransport::is_quiet() const {
  return dirty_.empty() && blocked_.empty() && wanted_.empty() && !has_timers();
}

// Several threads may wait here, but only one at a time takes events: that of an event
// which another one has handled meanwhile finds nothing.
void TcpTransport::await(milliseconds timeout, Looking& looking) {
  if (timeout.count() <= 0 || neighbours_.has_news()) return;
  if (is_pause_worth_it(looking) && look_for_news(looking)) return;
  const Neighbours::Nap nap(neighbours_);
  if (!neighbours_.has_news()) has_news(timeout);
}

void TcpTransport::take_events() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  if (count < 0 && errno != EINTR) throw SystemError("waiting for the network failed", errno);
  for (int i = 0; i < count; ++i) handle(events[i].data.u64, events[i].events);
}

// An error counts as news: take_events() will meet it, too.
bool TcpTransport::has_news(milliseconds timeout) const {
  pollfd what{epoll_.get(), POLLIN, 0};
  return ::poll(&what, 1, static_cast<int>(timeout.count())) != 0;
}

// Where nothing came during the last pauses, little will during the next one: it is tried
// now and then only.
bool TcpTransport::is_pause_worth_it(Looking& looking) const {
  constexpr uint32_t kFewVain = 4;
  constexpr uint32_t kNowAndThen = 16;
  if (options_.pause.count() == 0 || waits_for_wire_) return false;
  return looking.num_vain < kFewVain || ++looking.num_skipped % kNowAndThen == 0;
}

// A long payload takes its time, and nobody shares memory with us who might be faster.
bool TcpTransport::waits_for_wire() const {
  if (options_.pause.count() == 0 || neighbours_.is_open()) return false;
  return !blocked_.empty() || std::any_of(lanes_.begin(), lanes_.end(),
                                          [](const Lane& each) { return each.is_gathering(); });
}

bool TcpTransport::look_for_news(Looking& looking) const {
  constexpr int kLooks = 32;  // between two system calls
  const Clock::time_point end = Clock::now() + options_.pause;
  bool is_there = false;
  while (!is_there && Clock::now() < end) {
    is_there = neighbours_.has_news() || has_news(milliseconds(0));
    for (int look = 0; look < kLooks && !is_there; ++look) is_there = neighbours_.has_news();
    if (!is_there) ::sched_yield();  // whoever we woke may have no other processor
  }
  looking.num_vain = is_there ? 0 : looking.num_vain + 1;
  return is_there;
}

// An event may be about something that an earlier one of its batch has closed.
void TcpTransport::handle(uint64_t what, uint32_t events) {
  const uint64_t number = what >> 2;
  switch (static_cast<Subject>(what & 3)) {
    case Subject::kWake:
      return;  // until clear_wake()
    case Subject::kListener:
      return accept_all();
    case Subject::kGreeting:
      return advance(number);
    case Subject::kLane: {
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

// Each lane has a turn; one that blocks comes back when epoll says so, one that
// is not connected when it is.
void TcpTransport::flush() {
  for (const int link : std::exchange(dirty_, {})) {
    const bool is_wanted = wanted_.erase(link) > 0;
    if (lane(link).is_lost()) continue;
    if (lane(link).is_live()) {
      write_to(link);
    } else if (lane(link).has_work() || is_wanted) {
      dial(link);
    }
  }
}

void TcpTransport::write_to(int link) {
  bool would_block = false;
  const Lane::Loss loss = lane(link).write_some(sink_, &would_block);
  if (loss) {
    read_from(link);  // what it said before it went
    if (lane(link).is_live()) lose_link(link, *loss);
  } else if (would_block && lane(link).is_local()) {
    dirty_.erase(link);
    blocked_.insert(link);
  } else if (would_block) {
    watch(lane(link).fd(), EPOLLIN | EPOLLOUT, cookie(Subject::kLane, static_cast<uint64_t>(link)),
          false);
    dirty_.erase(link);
    blocked_.insert(link);
  } else if (lane(link).has_work()) {
    dirty_.insert(link);
  }
}

void TcpTransport::read_from(int link) {
  const Lane::Loss loss = lane(link).read_some(sink_);
  if (loss) return lose_link(link, *loss);
  if (lane(link).is_local()) unblock(link);
}

void TcpTransport::read_rings() {
  for (const int peer : neighbours_.peers()) {
    if (!neighbours_.ring(peer).has_news() || !lane(peer).is_live()) continue;
    const Lane::Loss loss = lane(peer).read_ring(sink_);
    if (loss) {
      lose_link(peer, *loss);
    } else {
      unblock(peer);
    }
  }
}

// What did not fit may have been written since: then there is nothing to do, and it is no news.
void TcpTransport::unblock(int link) {
  neighbours_.ring(peer_of(link)).forget_room();
  if (blocked_.erase(link) > 0) dirty_.insert(link);
}

void TcpTransport::drop(int link) {
  if (lane(link).is_live()) unwatch(lane(link).fd());
  blocked_.erase(link);
  lane(link).lose(sink_);
}

// A process that ends loses all its lanes, one after the other.
void TcpTransport::lose_link(int link, const std::string& reason) {
  constexpr milliseconds kAllGoTogether{1'000};
  const int peer = peer_of(link);
  drop(link);
  bool is_any_left = false;
  for (int other = peer; other < static_cast<int>(lanes_.size()); other += options_.size) {
    is_any_left = is_any_left || lane(other).is_live();
  }
  if (!is_any_left) return lose(peer, torn_.count(peer) > 0 ? torn_[peer].second : reason);
  torn_.try_emplace(peer, Clock::now() + kAllGoTogether, reason);
}

void TcpTransport::lose(int peer, const std::string& text) {
  const std::string reason = text;  // which may be ours to forget
  for (int link = peer; link < static_cast<int>(lanes_.size()); link += options_.size) drop(link);
  awaited_.erase(peer);
  torn_.erase(peer);
  if (sink_ != nullptr) sink_->on_peer_lost(peer, reason);
}

// ------------------------------------------------------------------------- end

bool TcpTransport::has_farewells() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& each) { return each.is_live(); });
}

// Sends what waits, says that nothing more comes, and then listens until the
// peers close, too: to close with unread bytes would reset the connection, and
// the peer might lose what we said last.
void TcpTransport::close(milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  sink_ = nullptr;
  greetings_.clear();
  probes_.clear();
  awaited_.clear();
  torn_.clear();
  listener_.reset();
  local_listener_.reset();
  std::set<int> ended;
  while (has_farewells() && Clock::now() < end) {
    flush();
    for (int link = 0; link < static_cast<int>(lanes_.size()); ++link) {
      Lane& each = lane(link);
      const bool is_silent = each.is_live() && !each.has_work();
      if (is_silent && ended.insert(link).second) ::shutdown(each.fd(), SHUT_WR);
    }
    await(std::min(milliseconds(20), limit), looking_);
    take_events();
    read_rings();
  }
  for (Lane& each : lanes_) {
    if (each.is_live()) unwatch(each.fd());
    each.lose(nullptr);
  }
}

// What epoll watches is all that is open; the kernel lists it without our locks. It is the
// parent's list: what the parent has opened since may have a number that is another file here.
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
  if (neighbours_.fd() >= 0) ::close(neighbours_.fd());
}

void TcpTransport::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace smdist
