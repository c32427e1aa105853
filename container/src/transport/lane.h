// SPDX-License-Identifier: Apache-2.0
// One connection to one peer, and what waits to be sent over it.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "smdist/transport.h"
#include "transport/ring.h"

namespace smdist {

// Cuts the byte stream in messages and back. Payloads go straight from where
// they are to the socket, and from the socket to where the sink wants them; only
// what follows a header in the same read takes a detour of up to 4 KiB. With a neighbour
// that has handed over its memory all goes through the ring there.
//
// Messages may be queued before the connection exists.
//
// Thread safety: none.
class Lane final {
 public:
  // Why the connection is lost, if it is.
  using Loss = std::optional<std::string>;

  explicit Lane(int peer) : peer_(peer) {}

  void attach(UniqueFd fd) {
    fd_ = std::move(fd);
    has_lived_ = true;
  }
  // A connection over which both sides hand over their memory; all else goes through the ring
  // there, and over the connection only calls to look at it.
  void attach_local(UniqueFd fd, int own_arena, Ring& ring);
  // Closes the connection for ever and drops what waits. What has left is reported first: the
  // peer may have taken it and gone.
  void lose(Sink* sink);

  // The peer may have so many bytes on their way, or more; 0: the kernel decides.
  void widen_arrivals(size_t bytes);

  bool is_live() const { return fd_.is_open(); }
  bool is_lost() const { return is_lost_; }
  bool has_lived() const { return has_lived_; }
  bool is_local() const { return ring_ != nullptr; }
  // Of a long payload the next part is on its way.
  bool is_gathering() const { return is_live() && gathered_ > 1; }
  bool has_work() const { return owed_arena_ >= 0 || !queue_.empty() || !unreported_.empty(); }
  int fd() const { return fd_.get(); }

  void send(Message message);
  void release_payloads();

  // Moves bytes until the socket blocks or it is another lane's turn. A null
  // sink is told nothing, and what comes in is thrown away.
  Loss write_some(Sink* sink, bool* would_block);
  // What leaves at once. The sink hears of it, and of a loss, by write_some().
  void write_early();
  Loss read_some(Sink* sink);
  // Only what lies in the ring.
  Loss read_ring(Sink* sink);
  void signal();

 private:
  struct Waiting {
    Message message;
    size_t sent = 0;  // bytes of header and payload
  };
  struct Incoming {
    HeaderBytes header{};
    uint8_t* data = nullptr;
    size_t missing = 0;  // bytes of the payload
    bool is_open = false;
  };

  size_t length_of(const Message& message) const;
  ssize_t write_once();
  ssize_t write_to_ring(const iovec* parts, size_t count);
  void account(size_t sent);
  void report(Sink* sink);
  Loss read_turn(Sink* sink);
  void gather();
  Loss hear();
  void call();
  void take(const uint8_t* data, size_t bytes, Sink* sink);
  void take_payload(size_t bytes, Sink* sink);
  void begin_message(Sink* sink);
  Loss take_arena(bool* is_there);

  const int peer_;
  UniqueFd fd_;
  Ring* ring_ = nullptr;  // of a neighbour
  int owed_arena_ = -1;   // our memory, which the peer has not got yet
  bool awaits_arena_ = false;
  bool has_lived_ = false;
  bool is_lost_ = false;
  std::deque<Waiting> queue_;
  std::vector<uint64_t> unreported_;  // tokens of messages that have left
  Incoming incoming_;
  int gathered_ = 1;  // so many bytes the socket tells of
  size_t most_gathered_ = 1;
  size_t header_bytes_ = 0;  // of the next header that are there
};

}  // namespace smdist
