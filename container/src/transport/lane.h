// SPDX-License-Identifier: Apache-2.0
// One connection to one peer, and its queue of messages.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "smdist/transport.h"
#include "transport/ring_buffer.h"

namespace smdist {

// Writes messages to a byte stream and reads them back. Payloads are copied directly between the
// memory of the caller or the sink and the socket; only the up to 4 KiB that follow a header in
// the same read pass through a staging buffer. If the peer shares its memory, all messages pass
// through ring buffers there instead.
//
// Messages may be queued before the connection exists.
//
// Thread safety: none.
class Lane final {
 public:
  // Reason of a lost connection; none while it is intact.
  using Loss = std::optional<std::string>;

  explicit Lane(int peer) : peer_(peer) {}

  void attach(UniqueFd fd) {
    fd_ = std::move(fd);
    has_lived_ = true;
  }
  // Attaches a Unix socket, over which both sides pass their shared memory. All messages then go
  // through the ring buffers there; the socket carries only notifications.
  void attach_shared_memory(UniqueFd fd, int own_arena, RingBuffer& ring);
  // Closes the connection for good and drops the queue. Messages that have been sent are reported
  // first, since the peer may have processed them before it left.
  void lose(Sink* sink);

  // Lets the peer have at least so many bytes in flight; 0: the kernel decides.
  void widen_receive_buffer(size_t bytes);

  bool is_live() const { return fd_.is_open(); }
  bool is_lost() const { return is_lost_; }
  bool has_lived() const { return has_lived_; }
  bool uses_shared_memory() const { return ring_ != nullptr; }
  // Returns whether the lane waits for the next part of a long payload.
  bool awaits_bulk_data() const { return is_live() && low_watermark_ > 1; }
  bool has_work() const { return arena_to_send_ >= 0 || !queue_.empty() || !unreported_.empty(); }
  int fd() const { return fd_.get(); }

  void send(Message message);
  void release_payloads();

  // Moves bytes until the socket blocks or another lane must be served. With a null sink nothing
  // is reported and received bytes are discarded.
  Loss write_some(Sink* sink, bool* would_block);
  // Writes as much as possible without delay. write_some() reports it to the sink later, and a
  // loss as well.
  void write_early();
  Loss read_some(Sink* sink);
  // Reads the ring buffer only.
  Loss read_ring(Sink* sink);
  void signal();

 private:
  struct Outgoing {
    Message message;
    size_t sent = 0;  // bytes of header and payload
  };
  struct Incoming {
    HeaderBytes header{};
    uint8_t* data = nullptr;
    size_t missing = 0;  // bytes of the payload still to come
    bool is_open = false;
  };

  size_t length_of(const Message& message) const;
  ssize_t write_once();
  ssize_t write_to_ring(const iovec* parts, size_t count);
  void account(size_t sent);
  void report(Sink* sink);
  Loss read_turn(Sink* sink);
  void update_low_watermark();
  Loss read_notifications();
  void notify();
  void take(const uint8_t* data, size_t bytes, Sink* sink);
  void take_payload(size_t bytes, Sink* sink);
  void begin_message(Sink* sink);
  Loss take_arena(bool* is_there);

  const int peer_;
  UniqueFd fd_;
  RingBuffer* ring_ = nullptr;  // null: the lane is a TCP connection
  int arena_to_send_ = -1;  // descriptor of this rank's arena until it is sent; -1: nothing to send
  bool awaits_arena_ = false;
  bool has_lived_ = false;
  bool is_lost_ = false;
  std::deque<Outgoing> queue_;
  std::vector<uint64_t> unreported_;  // tokens of messages that have been sent
  Incoming incoming_;
  int low_watermark_ = 1;  // number of bytes from which on the socket is readable
  size_t max_low_watermark_ = 1;
  size_t header_bytes_ = 0;  // bytes of the next header that have arrived
};

}  // namespace smdist
