// SPDX-License-Identifier: Apache-2.0
// What an engine is told once, at its beginning.
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

// Where a rank listens. `host` is a numeric IPv4 or IPv6 address; `local` names an
// abstract Unix socket, for ranks on the same host, and may be empty.
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

  // What messages call each rank, as "rank 3 on algo-2". Empty: "rank 3".
  std::vector<std::string> names;

  // By rank: equal numbers for ranks on one host, who combine before the wire. The
  // same on all ranks: the order of additions depends on it. Empty: all on one host.
  std::vector<int> hosts;

  // Shared by all ranks, any length. Who does not know it is not talked to.
  std::string secret;

  // The same on all ranks, and new for every set of engines of a job, so that
  // engines of an earlier attempt are kept out.
  std::array<uint8_t, 16> session{};

  // The longest payload of one message. Smaller lets short operations overtake
  // long ones sooner; larger costs fewer system calls.
  size_t chunk_bytes = 256 << 10;

  // What the engine begins with; see Engine::tune().
  Tuning tuning;

  // A rank keeps as many pieces of another as the window has, until all have come
  // that belong together. The same on all ranks.
  uint32_t window = 4;

  // A message of at most so many bytes that waits for nothing leaves with the
  // announcement of its operation; the second number is for ranks that share memory.
  size_t rider_bytes = 16 << 10;
  size_t shared_rider_bytes = 64 << 10;

  // Ranks of one host read each other's messages from blocks of shared memory, if
  // they can hand it to each other: so many for each of the others, of this length.
  // The same on all ranks.
  bool shares_memory = true;
  size_t block_bytes = 256 << 10;
  uint32_t blocks_per_peer = 8;

  // How long the engine's thread looks for news before it sleeps. Above zero only where
  // every rank of the machine has a processor to itself; at zero callers who wait are
  // scheduled as batches are (sched(7)), so that those they wait for finish first.
  std::chrono::microseconds pause{0};

  // Takes one line without its newline; called from the engine's threads. Null
  // drops the lines. Says what the engine survived, such as a stranger's visit.
  std::function<void(const std::string&)> log;
};

}  // namespace smdist
