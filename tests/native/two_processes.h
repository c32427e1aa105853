// SPDX-License-Identifier: Apache-2.0
// Two processes with one engine each.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "check.h"
#include "smdist/engine.h"

namespace smdist::testing {

// Two processes: this one is rank 0; the other one runs `part` and then waits to be killed.
class TwoProcesses final {
 public:
  using Part = void (*)(Engine& engine);

  // Call before any thread exists.
  TwoProcesses(Options options, Part part) {
    int ways[2][2];
    CHECK(::pipe(ways[0]) == 0 && ::pipe(ways[1]) == 0);
    child_ = ::fork();
    if (child_ == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    options.rank = child_ == 0 ? 1 : 0;
    options.size = 2;
    engine_.emplace(options);
    const uint16_t port = engine_->endpoint().port;
    uint16_t other = 0;
    CHECK(::write(ways[options.rank][1], &port, sizeof port) == sizeof port);
    CHECK(::read(ways[1 - options.rank][0], &other, sizeof other) == sizeof other);
    for (auto& way : ways) {
      for (const int fd : way) ::close(fd);
    }
    std::vector<Endpoint> peers(2, {"127.0.0.1", other});
    peers[static_cast<size_t>(options.rank)].port = port;
    engine_->join(peers);
    engine_->add_group(0, {0, 1});
    if (child_ != 0) return;
    part(*engine_);
    while (true) ::pause();
  }
  ~TwoProcesses() {
    kill();
    ::waitpid(child_, nullptr, 0);
  }
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  Engine& engine() { return *engine_; }
  void kill() const { ::kill(child_, SIGKILL); }
  void resume() const { CHECK_EQ(0, ::kill(child_, SIGCONT)); }
  void await_stop() const {
    int status = 0;
    CHECK_EQ(child_, ::waitpid(child_, &status, WUNTRACED));
    CHECK(WIFSTOPPED(status));
  }

 private:
  pid_t child_ = 0;
  std::optional<Engine> engine_;
};

}  // namespace smdist::testing
