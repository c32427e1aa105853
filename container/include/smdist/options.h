// SPDX-License-Identifier: Apache-2.0
// Options of an engine, which are constant during its life.
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

// Address of a rank. `host` is a numeric IPv4 or IPv6 address. `local` names an abstract Unix
// socket, for ranks on the same host, and may be empty.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
  std::string local = {};
};

// Check that finds changes of frames between hosts.
enum class Integrity : uint8_t {
  kOff = 0,     // TCP's own checksum of 16 bits alone
  kCrc32c = 1,  // a checksum that finds accidents
  kMac = 2,     // a message authentication code, which also finds attacks
};

// Return "off", "crc32c" or "mac".
const char* name_of(Integrity integrity);

// Protection of the TCP connections between ranks after the authentication handshake. Ranks that
// share memory need none of it. Must be the same on all ranks.
struct Protection {
  Integrity integrity = Integrity::kOff;
  bool encrypt = false;  // TLS 1.3, which also finds all that kMac finds
};

inline bool operator==(const Protection& a, const Protection& b) {
  return a.integrity == b.integrity && a.encrypt == b.encrypt;
}

// Return whether this build has OpenSSL, which Integrity::kMac and encryption need.
bool has_openssl();

struct Options {
  int rank = 0;  // from 0 to size - 1
  int size = 1;  // number of ranks

  // Address of the network interface that the engine listens on and connects from. Every other rank
  // must be able to reach it, so the default serves one host only.
  std::string bind_address = "127.0.0.1";

  // Names of ranks in messages, such as "rank 3 on algo-2". Empty: "rank 3".
  std::vector<std::string> names;

  // Number of the host of each rank, by rank. Ranks of one host reduce among themselves before they
  // use the network. Must be the same on all ranks, because the order of additions depends on it.
  // Empty: all ranks are on one host.
  std::vector<int> hosts;

  // Secret of any length, the same on all ranks. Connections of a process that does not know it are
  // rejected.
  std::string secret;

  // Identifier of this set of engines. Must be the same on all ranks, and new for every attempt of
  // a job, so that connections of engines of an earlier attempt are rejected.
  std::array<uint8_t, 16> session{};

  // Checks and encryption of the connections between hosts.
  Protection protection;

  // Maximum payload of one frame in bytes. With a smaller maximum, short operations overtake long
  // ones sooner; a larger one needs fewer system calls.
  size_t fragment_bytes = 256 << 10;

  // Tuning at the start; see Engine::tune().
  Tuning tuning;

  // Maximum number of lanes (connections) to each other rank that any tuning may use. Further ones
  // are rejected.
  uint32_t max_lanes = kMaxLanes;

  // Time limit for the connection to another rank, from the first attempt. Attempts that end before
  // the other rank has proved to belong to the job are repeated until then.
  std::chrono::milliseconds start_timeout{600'000};

  // Time after which a host counts as lost if its kernel answers nothing, from one second to a day.
  // A process that is stopped, while its kernel answers, is not lost.
  std::chrono::milliseconds silence{60'000};

  // Path of a file with the addresses of hosts whose launcher has ended, one a line. A rank on such
  // a host counts as lost as soon as a connection to it has ended. The file may appear, and be
  // replaced, at any time. Empty: there is no such file.
  std::string ended_hosts_file;

  // Number of chunks that a rank can keep in memory for each other rank, until the chunks of all
  // ranks have arrived and can be reduced. Must be the same on all ranks.
  uint32_t window = 4;

  // Maximum size of an eager message: a message that is sent together with the RTR (ready to
  // receive) frame of its operation. shared_eager_bytes is the maximum between ranks that share
  // memory.
  size_t eager_bytes = 16 << 10;
  size_t shared_eager_bytes = 64 << 10;

  // shares_memory: ranks of one host read each other's messages from blocks of shared memory, if
  // they can pass its file descriptor to each other. Each rank has blocks_per_peer blocks of
  // block_bytes bytes for each other rank of its host. Must be the same on all ranks.
  bool shares_memory = true;
  size_t block_bytes = 256 << 10;
  uint32_t blocks_per_peer = 8;

  // Length of the memory that Engine::shared_memory() returns. The system provides pages when they
  // are first written. Must be the same on all ranks of a host.
  size_t caller_memory_bytes = 0;

  // Time for which a waiting thread spins before it sleeps. Set it above zero only if every rank of
  // the machine has a processor of its own. At zero, waiting threads get the scheduling policy
  // SCHED_BATCH (sched(7)), so that the ranks that they wait for can finish first.
  std::chrono::microseconds pause{0};

  // Time after which a rank that has not come to a collective is named in the log, and the time
  // until it is named again. They differ from the defaults only in tests.
  std::chrono::milliseconds late_after{10'000};
  std::chrono::milliseconds late_again{60'000};

  // Function that writes one line of the log, without a newline; called from the engine's threads.
  // Null: no log. The lines report events that do not end the engine, such as a rejected
  // connection.
  std::function<void(const std::string&)> log;

  // Function that is called once if the engine fails, on a thread that moves operations forward. It
  // must be short, and may call no method of the engine. Null: nothing is called.
  std::function<void()> on_failure;
};

}  // namespace smdist
