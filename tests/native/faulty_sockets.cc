// SPDX-License-Identifier: Apache-2.0
#include "faulty_sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace smdist::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int real_connect(int fd, const sockaddr_in& to) {
  return static_cast<int>(::syscall(SYS_connect, fd, &to, sizeof to));
}

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr_in name_of(int fd, decltype(::getsockname)* function) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  function(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return address;
}

// Opens a socket on a free port, on which it listens or refuses connections.
int open_port(bool listens) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_in address = loopback();
  const bool is_bound =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!is_bound || (listens && ::listen(fd, SOMAXCONN) != 0)) std::abort();
  return fd;
}

// Fault of one connection, and where it wanted to go.
struct Plan {
  sockaddr_in target;
  Clock::time_point begin;  // before this time nothing is passed on
  int64_t passed = -1;      // bytes from the target after which the connection is reset; -1: never
};

// A connection through the relay.
struct Pair {
  Plan plan;
  int ends[2] = {-1, -1};  // the side that connects, its target
  bool is_ended[2] = {false, false};
  int64_t passed = 0;
};

// Sits between both sides of faulty connections, on a thread of its own.
class Relay final {
 public:
  Relay() : listener_(open_port(true)), closed_(open_port(false)) {
    std::thread([this] { run(); }).detach();
  }

  int refuse(int fd) { return real_connect(fd, name_of(closed_, ::getsockname)); }

  int relay(int fd, const Plan& plan) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int result = real_connect(fd, name_of(listener_, ::getsockname));
    const int error = errno;
    plans_[name_of(fd, ::getsockname).sin_port] = plan;
    errno = error;
    return result;
  }

 private:
  void run() {
    std::vector<pollfd> watched;
    while (true) {
      watched.assign(1, {listener_, POLLIN, 0});
      const Clock::time_point now = Clock::now();
      bool is_waiting = false;
      for (const Pair& pair : pairs_) {
        is_waiting = is_waiting || pair.ends[1] < 0;
        for (int side = 0; side < 2; ++side) {
          const bool reads = pair.plan.begin <= now && !pair.is_ended[side];
          watched.push_back({reads ? pair.ends[side] : -1, POLLIN, 0});
        }
      }
      ::poll(watched.data(), watched.size(), is_waiting ? 10 : -1);
      step(watched);
    }
  }

  void step(const std::vector<pollfd>& watched) {
    std::deque<Pair> kept;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      Pair& pair = pairs_[i];
      bool is_over = open_target(pair);
      for (size_t side = 0; side < 2 && !is_over; ++side) {
        if (watched[1 + 2 * i + side].revents != 0) is_over = pass(pair, static_cast<int>(side));
      }
      if (!is_over) kept.push_back(pair);
    }
    pairs_ = kept;
    accept_all();
  }

  void accept_all() {
    while (true) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      const std::lock_guard<std::mutex> lock(mutex_);
      Pair pair;
      pair.plan = plans_[name_of(fd, ::getpeername).sin_port];
      pair.ends[0] = fd;
      pairs_.push_back(pair);
    }
  }

  // Connects to the target when it is time. Returns whether the pair has ended.
  static bool open_target(Pair& pair) {
    if (pair.ends[1] >= 0 || pair.plan.begin > Clock::now()) return false;
    if (pair.plan.passed == 0) return reset(pair);
    pair.ends[1] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (real_connect(pair.ends[1], pair.plan.target) != 0) return reset(pair);
    ::fcntl(pair.ends[1], F_SETFL, O_NONBLOCK);
    return false;
  }

  // Passes on what one side has sent. Returns whether the pair has ended.
  static bool pass(Pair& pair, int side) {
    static std::array<char, 64 << 10> bytes;
    const bool is_limited = side == 1 && pair.plan.passed >= 0;
    const int64_t room =
        is_limited ? pair.plan.passed - pair.passed : static_cast<int64_t>(bytes.size());
    if (room <= 0) return reset(pair);
    const ssize_t got = ::recv(pair.ends[side], bytes.data(), static_cast<size_t>(room), 0);
    if (got < 0 && errno == EAGAIN) return false;
    if (got < 0) return reset(pair);
    if (got == 0) {
      pair.is_ended[side] = true;
      ::shutdown(pair.ends[1 - side], SHUT_WR);
      return pair.is_ended[1 - side] && end(pair);
    }
    if (side == 1) pair.passed += got;
    return !send_all(pair.ends[1 - side], bytes.data(), static_cast<size_t>(got)) && reset(pair);
  }

  static bool send_all(int fd, const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent < 0) {
        pollfd writable{fd, POLLOUT, 0};
        if (::poll(&writable, 1, 5000) != 1) return false;
        continue;
      }
      data += sent;
      bytes -= static_cast<size_t>(sent);
    }
    return true;
  }

  static bool reset(Pair& pair) {
    const linger at_once{1, 0};
    for (const int fd : pair.ends) {
      if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    return end(pair);
  }

  static bool end(Pair& pair) {
    for (const int fd : pair.ends) {
      if (fd >= 0) ::close(fd);
    }
    return true;
  }

  const int listener_;
  const int closed_;
  std::mutex mutex_;
  std::map<in_port_t, Plan> plans_;  // by port of the side that connects, in network byte order
  std::deque<Pair> pairs_;           // of the relay's thread alone
};

std::atomic<uint64_t> num_faulty{0};
std::atomic<bool> is_out_of_files{false};
std::mutex faults_mutex;
ConnectionFaults faults;
bool are_faults_set = false;
std::minstd_rand random_numbers{1};

// Returns the faults of this process; unless set, those of the environment: out of 1000, a third of
// each kind.
ConnectionFaults current_faults() {
  if (are_faults_set) return faults;
  are_faults_set = true;
  const char* const share = std::getenv("SMDIST_FAULTY_SOCKETS");
  const int each = share == nullptr ? 0 : std::atoi(share) / 3;
  random_numbers.seed(static_cast<unsigned>(::getpid()));
  return faults = {each, each, each};
}

// Returns the relay of this process: a forked child has none of its parent's threads.
Relay& relay_of_process() {
  static Relay* relay = nullptr;
  static pid_t owner = 0;
  if (owner != ::getpid()) relay = new Relay;
  owner = ::getpid();
  return *relay;
}

Plan plan_of_delay(const sockaddr_in& target) {
  return {target, Clock::now() + milliseconds(50 + random_numbers() % 350), -1};
}

// Resets before anything, within the nonce, before the proof.
Plan plan_of_reset(const sockaddr_in& target) {
  constexpr int64_t kPassed[] = {0, 16, 32};
  return {target, Clock::now(), kPassed[random_numbers() % 3]};
}

int connect_with_faults(int fd, const sockaddr_in& to) {
  const std::lock_guard<std::mutex> lock(faults_mutex);
  const ConnectionFaults now = current_faults();
  int lot = static_cast<int>(random_numbers() % 1000);
  if (lot >= now.refused + now.reset + now.delayed) return real_connect(fd, to);
  ++num_faulty;
  if (lot < now.refused) return relay_of_process().refuse(fd);
  lot -= now.refused;
  return relay_of_process().relay(fd, lot < now.reset ? plan_of_reset(to) : plan_of_delay(to));
}

bool is_nonblocking(int fd) { return (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }

}  // namespace

void set_connection_faults(const ConnectionFaults& wanted) {
  const std::lock_guard<std::mutex> lock(faults_mutex);
  are_faults_set = true;
  faults = wanted;
}

void set_out_of_files(bool is_out) { is_out_of_files = is_out; }

uint64_t count_faulty_connections() { return num_faulty; }

}  // namespace smdist::testing

// These functions replace those of the C library.
extern "C" int connect(int fd, const sockaddr* to, socklen_t bytes) {
  const bool is_tcp = to->sa_family == AF_INET && bytes >= sizeof(sockaddr_in);
  if (!is_tcp || !smdist::testing::is_nonblocking(fd)) {
    return static_cast<int>(::syscall(SYS_connect, fd, to, bytes));
  }
  return smdist::testing::connect_with_faults(fd, *reinterpret_cast<const sockaddr_in*>(to));
}

extern "C" int socket(int domain, int type, int protocol) {
  if (smdist::testing::is_out_of_files && (type & SOCK_NONBLOCK) != 0) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_socket, domain, type, protocol));
}

extern "C" int accept4(int listener, sockaddr* address, socklen_t* bytes, int flags) {
  if (smdist::testing::is_out_of_files && (flags & SOCK_NONBLOCK) != 0) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_accept4, listener, address, bytes, flags));
}
