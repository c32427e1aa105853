// SPDX-License-Identifier: Apache-2.0
// A network device between two engines of one process, which ends their connections.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "check.h"
#include "smdist/options.h"
#include "transport/socket.h"

namespace smdist::testing {

// Forwards the connections that rank 1 opens to rank 0. Each ends after a random number of bytes of
// either direction, at any byte: with FIN or RST, for both sides together or for one of them first.
//
// Thread safety: cut_all() and num_cuts() may be called from any thread.
class CuttingProxy final {
 public:
  // bytes: mean number of bytes after which a connection ends; 0: none ends by itself.
  CuttingProxy(Endpoint target, uint32_t seed, size_t bytes)
      : target_(std::move(target)),
        random_(seed),
        mean_bytes_(bytes),
        listener_(listen_on("127.0.0.1")),
        thread_([this] { run(); }) {}
  ~CuttingProxy() {
    is_ended_ = true;
    thread_.join();
  }
  Endpoint endpoint() const { return local_endpoint(listener_.get()); }
  // End all connections soon.
  void cut_all() { is_cut_wanted_ = true; }
  // Answer nothing to new connections, as if their packets were lost.
  void ignore_dials() { ignores_dials_ = true; }
  // Let connections live from now on.
  void stop_cutting() { mean_bytes_ = 0; }
  int num_cuts() const { return num_cuts_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pair {
    UniqueFd ends[2];  // of the dialler, and of the acceptor
    size_t left = SIZE_MAX;
    Clock::time_point end = Clock::time_point::max();  // of the side that was not ended at once
  };

  void run() {
    while (!is_ended_) {
      std::vector<pollfd> what = {{ignores_dials_ ? -1 : listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const bool is_whole = pair.ends[0].is_open() && pair.ends[1].is_open();
        for (const UniqueFd& end : pair.ends)
          what.push_back({is_whole ? end.get() : -1, POLLIN, 0});
      }
      ::poll(what.data(), what.size(), 5);
      size_t next = 1;
      for (Pair& pair : pairs_) {
        for (const int side : {0, 1}) {
          if (what[next++].revents != 0) forward(pair, side);
        }
      }
      if (what[0].revents != 0) accept();
      const bool is_cut_wanted = is_cut_wanted_.exchange(false);
      for (Pair& pair : pairs_) {
        if (is_cut_wanted) cut(pair);
        if (pair.end <= Clock::now()) close_both(pair);
      }
      pairs_.remove_if(
          [](const Pair& pair) { return !pair.ends[0].is_open() && !pair.ends[1].is_open(); });
    }
  }

  void accept() {
    UniqueFd dialler(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!dialler.is_open()) return;
    const Address address(target_.host, target_.port);
    UniqueFd acceptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(acceptor.get(), address.raw(), address.bytes) != 0) return;
    Pair pair{{std::move(dialler), std::move(acceptor)}};
    if (const size_t mean = mean_bytes_; mean > 0) pair.left = random_() % (2 * mean);
    pairs_.push_back(std::move(pair));
  }

  void forward(Pair& pair, int from) {
    char buffer[64 << 10];
    if (!pair.ends[0].is_open() || !pair.ends[1].is_open()) return;
    const size_t most = std::min(sizeof buffer, pair.left);
    const ssize_t got =
        ::recv(pair.ends[from].get(), buffer, std::max<size_t>(most, 1), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close_both(pair);
    const size_t bytes = std::min(static_cast<size_t>(got), most);
    for (size_t done = 0; done < bytes;) {
      const int to = pair.ends[1 - from].get();
      const ssize_t sent = ::send(to, buffer + done, bytes - done, MSG_NOSIGNAL);
      if (sent <= 0) return close_both(pair);
      done += static_cast<size_t>(sent);
    }
    if (pair.left == SIZE_MAX) return;
    pair.left -= bytes;
    if (pair.left == 0) cut(pair);
  }

  // Ends one side now and the other one a little later, or both.
  void cut(Pair& pair) {
    if (pair.end != Clock::time_point::max()) return;
    ++num_cuts_;
    const uint32_t how = random_() % 6;
    if (how % 2 == 0) {
      for (UniqueFd& end : pair.ends) reset_on_close(end);
    }
    if (how / 2 < 2) pair.ends[how / 2].reset();
    pair.end = Clock::now() + std::chrono::milliseconds(how / 2 < 2 ? random_() % 50 : 0);
  }

  static void reset_on_close(const UniqueFd& fd) {
    const linger now{1, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

  static void close_both(Pair& pair) {
    for (UniqueFd& end : pair.ends) end.reset();
  }

  const Endpoint target_;
  std::minstd_rand random_;
  std::atomic<size_t> mean_bytes_;
  UniqueFd listener_;
  std::list<Pair> pairs_;
  std::atomic<bool> is_cut_wanted_{false};
  std::atomic<bool> ignores_dials_{false};
  std::atomic<int> num_cuts_{0};
  std::atomic<bool> is_ended_{false};
  std::thread thread_;  // last, because it uses all others
};

}  // namespace smdist::testing
