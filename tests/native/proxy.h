// SPDX-License-Identifier: Apache-2.0
// A man in the middle between two engines of one process.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "check.h"
#include "cluster.h"
#include "transport/socket.h"

namespace smdist::testing {

// Changes the bytes from rank 1 to rank 0. Gets what has arrived and returns what to pass on.
using Tamper = std::function<std::string(const std::string&)>;

// Forwards the connections that rank 1 opens to rank 0, and records them.
class Proxy final {
 public:
  Proxy(Endpoint target, Tamper tamper)
      : target_(std::move(target)),
        tamper_(std::move(tamper)),
        listener_(listen_on("127.0.0.1")),
        thread_([this] { run(); }) {}
  ~Proxy() {
    is_ended_ = true;
    thread_.join();
  }
  Endpoint endpoint() const { return local_endpoint(listener_.get()); }
  std::string seen() {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

 private:
  struct Pair {
    UniqueFd from_dialler;
    UniqueFd to_acceptor;
  };

  void run() {
    while (!is_ended_) {
      std::vector<pollfd> what = {{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        what.push_back({pair.from_dialler.get(), POLLIN, 0});
        what.push_back({pair.to_acceptor.get(), POLLIN, 0});
      }
      if (::poll(what.data(), what.size(), 20) <= 0) continue;
      const size_t count = pairs_.size();
      if (what[0].revents != 0) accept();
      for (size_t i = 0; i < count; ++i) {
        Pair& pair = pairs_[i];
        bool is_open = true;
        if (what[2 * i + 1].revents != 0) {
          is_open = forward(pair.from_dialler.get(), pair.to_acceptor.get(), true);
        }
        if (is_open && what[2 * i + 2].revents != 0) {
          is_open = forward(pair.to_acceptor.get(), pair.from_dialler.get(), false);
        }
        if (!is_open) pair = {};  // poll() ignores closed descriptors
      }
    }
  }

  void accept() {
    UniqueFd dialler(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!dialler.is_open()) return;
    const Address address(target_.host, target_.port);
    UniqueFd acceptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(::connect(acceptor.get(), address.raw(), address.bytes) == 0);
    pairs_.push_back({std::move(dialler), std::move(acceptor)});
  }

  bool forward(int from, int to, bool is_from_dialler) {
    char buffer[64 << 10];
    const ssize_t got = ::recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    std::string bytes(buffer, static_cast<size_t>(got));
    if (is_from_dialler && tamper_) bytes = tamper_(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      seen_.append(buffer, static_cast<size_t>(got));
    }
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t sent = ::send(to, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<size_t>(sent);
    }
    return true;
  }

  const Endpoint target_;
  const Tamper tamper_;
  UniqueFd listener_;
  std::vector<Pair> pairs_;
  std::mutex mutex_;
  std::string seen_;
  std::atomic<bool> is_ended_{false};
  std::thread thread_;  // last, because it uses all others
};

// Two engines on two hosts. All bytes between them go through a proxy.
class TamperedPair final {
 public:
  TamperedPair(const Protection& protection, Tamper tamper)
      : TamperedPair(protection, protection, tamper) {}
  TamperedPair(const Protection& first, const Protection& second, Tamper tamper) {
    engines_[0] = make_engine(0, first);
    engines_[1] = make_engine(1, second);
    proxy = std::make_unique<Proxy>(engines_[0]->endpoint(), std::move(tamper));
    engines_[0]->join({engines_[0]->endpoint(), engines_[1]->endpoint()});
    engines_[1]->join({proxy->endpoint(), engines_[1]->endpoint()});
    for (auto& engine : engines_) engine->add_group(0, {0, 1});
  }

  // Sums `values` of both ranks and returns the errors of both.
  std::vector<std::exception_ptr> sum(std::vector<float>& first, std::vector<float>& second) {
    Result one = start(*engines_[0], 0, sum_of(first));
    Result two = start(*engines_[1], 0, sum_of(second));
    return {one.get(), two.get()};
  }
  Engine* engine(int rank) { return engines_[rank].get(); }
  std::string log() {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }
  // Returns the log once it has `part`, or as it is after 10 s: the rank that rejects a connection
  // answers before it logs.
  std::string log_with(const std::string& part) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (log().find(part) == std::string::npos && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return log();
  }

  std::unique_ptr<Proxy> proxy;  // destroyed after the engines

 private:
  std::unique_ptr<Engine> make_engine(int rank, const Protection& protection) {
    Options options;
    options.rank = rank;
    options.size = 2;
    options.hosts = {0, 1};
    options.shares_memory = false;
    options.secret = "a secret between tests";
    options.session[0] = 42;
    options.names = {"rank 0 on algo-1", "rank 1 on algo-2"};
    options.protection = protection;
    options.log = [this](const std::string& line) {
      std::lock_guard<std::mutex> lock(log_mutex_);
      log_ += line + "\n";
    };
    return std::make_unique<Engine>(std::move(options));
  }

  std::mutex log_mutex_;
  std::string log_;
  std::unique_ptr<Engine> engines_[2];
};

}  // namespace smdist::testing
