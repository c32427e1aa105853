// SPDX-License-Identifier: Apache-2.0
// The options of an engine, which do not change during its life.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "smdist/tuning.h"

namespace smdist {

// The address of a rank. `host` is a numeric IPv4 or IPv6 address. `local` names an abstract Unix
// socket, for ranks on the same host, and may be empty.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
  std::string local = {};
};

struct Options {
  int rank = 0;
  int size = 1;

  // The address of the interface to listen on and to dial from. Every other
  // rank must be able to reach it, so the default serves one host only.
  std::string bind_address = "127.0.0.1";

  // Names of ranks in messages, such as "rank 3 on algo-2". Empty: "rank 3".
  std::vector<std::string> names;

  // By rank: the number of its host. Ranks of one host reduce among themselves before they use the
  // network. Must be the same on all ranks, because the order of additions depends on it. Empty:
  // all ranks are on one host.
  std::vector<int> hosts;

  // A secret of any length, the same on all ranks. A peer that does not know it is refused.
  std::string secret;

  // Must be the same on all ranks, and new for every set of engines of a job, so that engines of
  // an earlier attempt are refused.
  std::array<uint8_t, 16> session{};

  // The longest payload of one frame. With a smaller one, short operations overtake long ones
  // sooner; a larger one costs fewer system calls.
  size_t chunk_bytes = 256 << 10;

  // The first tuning; see Engine::tune().
  Tuning tuning;

  // Number of pieces of each other rank that a rank keeps in memory until the pieces of all ranks
  // are there and can be reduced. Must be the same on all ranks.
  uint32_t window = 4;

  // A message of at most this many bytes that waits for nothing is eager: it leaves together with
  // the READY frame of its operation. The second number is for ranks that share memory.
  size_t eager_bytes = 16 << 10;
  size_t shared_eager_bytes = 64 << 10;

  // Ranks of one host read each other's messages from blocks of shared memory, if they can pass
  // its file descriptor to each other. Each rank has blocks_per_peer blocks of block_bytes for
  // each other rank of its host. Must be the same on all ranks.
  bool shares_memory = true;
  size_t block_bytes = 256 << 10;
  uint32_t blocks_per_peer = 8;

  // Time for which a thread spins before it sleeps. Set it above zero only if every rank of the
  // machine has a processor to itself. At zero, callers that wait get the policy SCHED_BATCH
  // (sched(7)), so that the ranks that they wait for can finish first.
  std::chrono::microseconds pause{0};

  // Takes one line without its newline; called from the engine's threads. Null: no log. Reports
  // events that do not end the engine, such as a connection that was refused.
  std::function<void(const std::string&)> log;
};

}  // namespace smdist
