// SPDX-License-Identifier: Apache-2.0
// A connection to one peer, and its queue of messages.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "smdist/transport.h"
#include "transport/byte_stream.h"
#include "transport/frame_check.h"
#include "transport/ring_buffer.h"
#include "transport/silence.h"

namespace smdist {

// Sends and receives messages over a TCP connection or, if the peer shares its memory, through ring
// buffers in shared memory. Payloads are copied directly between the socket and the memory of the
// caller or the sink; only the up to 4 KiB that follow a header in the same read are copied through
// a staging buffer.
//
// Over TCP, frames may have tags (see frame_check.h), and TLS may lie between the lane and its
// socket (see byte_stream.h). A lane that has received a wrong tag reads nothing more, but still
// sends, so that the peer learns of the fault.
//
// Messages may be queued before the connection exists. A TCP connection that has ended may be
// replaced by another one (lane_resuming.cc). For that, messages that have been sent are kept until
// the peer has acknowledged their bytes, in frames that only lanes see. The bytes of a lane are
// counted over all its connections, below TLS and above the frames' tags.
//
// Thread safety: none.
class Lane final {
 public:
  // Reason of the loss of a connection, as the rest of a sentence that begins with the peer's name;
  // none while the connection works.
  using Loss = std::optional<std::string>;

  // number: number of this lane among the lanes of the peer. silence: see Options.
  explicit Lane(int peer, uint32_t number = 0,
                std::chrono::milliseconds silence = Options{}.silence)
      : peer_(peer), is_extra_(number > 0), silence_(silence) {}

  // Set the connected TCP socket.
  void attach(UniqueFd fd) {
    fd_ = std::move(fd);
    has_lived_ = true;
  }
  // Check and encrypt all that follows. Call after attach(), before anything is sent or received.
  // A lane that continues keeps the keys of its frames' tags.
  void protect(const Protection& protection, const LaneKeys& keys);

  // Let the lane continue over another connection if this one ends. most_unacknowledged: bytes
  // after which it sends nothing new until the peer has acknowledged some; the same on both sides.
  void make_resumable(uint64_t most_unacknowledged) {
    is_resumable_ = true;
    most_unacknowledged_ = most_unacknowledged;
  }
  // Return whether the lane can continue, after a loss.
  bool may_resume() const { return is_resumable_ && end_ != End::kNone && !is_deaf_ && !is_lost_; }
  // Return whether the connection has ended because the peer's kernel has not answered over it.
  bool is_silent() const { return end_ == End::kSilent; }
  // Close the connection, which has ended or which the peer has given up.
  void interrupt(Sink* sink);
  // Return whether the lane has lost its connection and waits for another one.
  bool is_interrupted() const { return has_lived_ && !is_lost_ && !fd_.is_open(); }
  // Return the number of bytes that this rank has received over all connections.
  uint64_t received() const { return received_; }
  // Return whether a peer that has received so many bytes can get all that follow.
  bool can_resume_from(uint64_t peer_received) const {
    return acknowledged_ <= peer_received && peer_received <= written_;
  }
  // Continue over a new socket, for the first time or again, with the bytes that the peer has not
  // received. Requires: can_resume_from(). Call protect() next.
  void resume(UniqueFd fd, uint64_t peer_received);
  // Stop using memory of the caller that messages which have been reported as sent still refer to.
  void detach_payloads(const Span& memory);
  // Return whether there are such messages.
  bool has_references() const { return num_references_ > 0; }
  // Return whether an acknowledgement is due.
  bool owes_acknowledgement() const;
  // Send an acknowledgement, so that the kernel finds out whether the connection still exists.
  void probe() { is_probing_ = is_resumable_; }
  // Keep nothing more, because the connection will not be replaced.
  void end_resuming();
  // Set the connected Unix socket, over which both sides send the descriptor of their shared
  // memory. All messages then use the ring buffers there; the socket transfers only notifications.
  void attach_shared_memory(UniqueFd fd, int own_arena, RingBuffer& ring);
  // Close the connection for good and drop the queue. First report messages that have been sent to
  // the sink, because the peer may have processed them.
  void lose(Sink* sink);

  // Allow the peer to have at least this many bytes in flight; 0: the kernel decides.
  void widen_receive_buffer(size_t bytes);

  bool is_live() const { return fd_.is_open(); }
  bool is_lost() const { return is_lost_; }
  // Return whether the lane is, or was, connected.
  bool has_lived() const { return has_lived_; }
  bool uses_shared_memory() const { return ring_ != nullptr; }
  // Return whether the lane waits for more data of a long payload.
  bool awaits_bulk_data() const { return is_live() && awaits_bulk_data_; }
  // Return whether there is something to send or to report.
  bool has_work() const {
    return arena_to_send_ >= 0 || !queue_.empty() || !unreported_.empty() || has_unsent_bytes();
  }
  // Return whether TLS holds bytes that the socket has not taken.
  bool has_unsent_bytes() const { return stream_ != nullptr && stream_->has_unsent(); }
  // Return whether nothing can be sent before the peer continues the TLS handshake, or acknowledges
  // bytes.
  bool awaits_peer() const {
    if (has_unsent_bytes()) return false;
    const bool is_blocked = !queue_.empty() && is_full() && !must_go(queue_.front());
    return is_blocked || (stream_ != nullptr && stream_->awaits_peer());
  }
  int fd() const { return fd_.get(); }

  // Queue a message.
  void send(Message message);
  // Stop using the payload memory of queued and incoming messages that are chosen: see Transport.
  void release_payloads(const Transport::HeaderFilter& is_chosen);

  // Send queued messages until the socket blocks, which sets *would_block, or until it is the turn
  // of another lane. With a null sink nothing is reported.
  Loss write_some(Sink* sink, bool* would_block);
  // Send as many bytes as possible now. A later write_some() reports sent messages, or a loss.
  void write_early();
  // Receive messages until there are no more, or until it is the turn of another lane. With a null
  // sink received bytes are discarded.
  Loss read_some(Sink* sink);
  // Receive messages from the ring buffer only.
  Loss read_ring(Sink* sink);
  // Return the loss of the TCP connection if the peer's kernel has answered nothing over it for too
  // long. Call often.
  Loss check_silence(std::chrono::steady_clock::time_point now);
  // Return the silence at the last check.
  std::chrono::steady_clock::duration silence() const { return silence_clock_.duration(); }
  // Return when the peer's kernel was last known to have answered over the TCP connection.
  std::chrono::steady_clock::time_point last_answer() const { return silence_clock_.last_answer(); }
  // Return whether check_silence() has to be called again, because something may wait for an
  // answer.
  bool may_await_answer() const { return has_sent_ || silence_clock_.is_running(); }
  // Tell the peer that nothing more will be sent.
  void end_writing();
  // Signal to the peer that data in this rank's arena have changed.
  void signal();

 private:
  // A queued message.
  struct Outgoing {
    Message message;
    size_t sent = 0;  // number of sent bytes of header, payload and tags
    bool has_tags = false;
    bool is_reported = false;                      // as sent, so its memory may change
    bool is_acknowledgement = false;               // a frame of the lane itself
    std::array<uint8_t, 2 * kMaxTagBytes> tags{};  // tags of header and payload
  };
  // The message that is being received.
  struct Incoming {
    HeaderBytes header{};
    uint8_t* data = nullptr;
    size_t missing = 0;  // number of bytes of the payload that have not arrived
    bool is_open = false;
    std::array<uint8_t, kMaxTagBytes> tag{};
    size_t tag_bytes = 0;  // bytes of the tag that have arrived
  };

  static bool must_go(const Outgoing& waiting) {
    return waiting.sent > 0 || waiting.has_tags || waiting.is_acknowledgement;
  }
  // Return whether so many bytes are not acknowledged that no further message may be sent.
  bool is_full() const { return is_resumable_ && written_ - acknowledged_ >= most_unacknowledged_; }
  void keep(Outgoing message);
  void copy_payload(Outgoing& kept);
  void queue_acknowledgement();
  void take_acknowledgement();
  void forget_until(uint64_t position);
  void restart();
  size_t length_of(const Message& message) const;
  size_t tag_bytes() const { return outgoing_check_ ? outgoing_check_->tag_bytes() : 0; }
  void add_tags(Outgoing& waiting);
  size_t add_parts(const Outgoing& waiting, iovec* parts) const;
  ssize_t write_once();
  ssize_t write_to_ring(const iovec* parts, size_t count);
  void account(size_t sent);
  void report(Sink* sink);
  enum class End { kNone, kClosed, kSilent };

  Loss read_turn(Sink* sink);
  void update_low_watermark();
  Loss read_notifications();
  void notify();
  void take(const uint8_t* data, size_t bytes, Sink* sink);
  void take_payload(const uint8_t* at, size_t bytes, Sink* sink);
  size_t take_header(const uint8_t* data, size_t bytes, Sink* sink);
  size_t take_tag(const uint8_t* data, size_t bytes, Sink* sink);
  void begin_message(Sink* sink);
  void finish_message(Sink* sink);
  ssize_t read_once(const iovec* parts, size_t count, bool may_receive);
  Loss refuse(Sink* sink, const std::string& reason);
  Loss take_arena(bool* is_there);
  std::string closed_by(int error);
  std::string end_silent();
  Loss closed();

  const int peer_;
  const bool is_extra_;  // another lane than lane 0
  const std::chrono::milliseconds silence_;
  SilenceClock silence_clock_;
  bool has_sent_ = false;  // since the last check of silence
  UniqueFd fd_;
  std::unique_ptr<ByteStream> stream_;          // TLS; null: none
  std::unique_ptr<FrameCheck> outgoing_check_;  // null: frames have no tags
  std::unique_ptr<FrameCheck> incoming_check_;
  bool is_deaf_ = false;        // the lane has received altered bytes, and discards all that follow
  RingBuffer* ring_ = nullptr;  // null: the lane is a TCP connection
  int arena_to_send_ = -1;  // descriptor of this rank's arena until it is sent; -1: nothing to send
  bool awaits_arena_ = false;
  bool has_lived_ = false;
  bool is_lost_ = false;
  bool is_resumable_ = false;
  uint64_t most_unacknowledged_ = 0;
  End end_ = End::kNone;       // end of the connection, without a fault of the peer
  bool is_probing_ = false;    // an acknowledgement is due
  uint64_t written_ = 0;       // bytes that connections have taken
  uint64_t acknowledged_ = 0;  // bytes that the peer has received, as far as it has said
  uint64_t received_ = 0;      // bytes that this rank has received
  uint64_t announced_ = 0;     // bytes that this rank has acknowledged
  uint64_t kept_from_ = 0;     // position of the first byte of sent_, or of queue_
  std::deque<Outgoing> sent_;  // whole messages that the peer has not acknowledged
  size_t num_references_ = 0;  // messages that are reported and refer to memory of the caller
  std::deque<Outgoing> queue_;
  std::vector<uint64_t> unreported_;  // tokens of messages that have been sent
  Incoming incoming_;
  int low_watermark_ = 1;  // number of bytes from which on the socket is readable
  size_t max_low_watermark_ = 1;
  bool awaits_bulk_data_ = false;
  size_t header_bytes_ = 0;  // bytes of the next header and its tag that have arrived
};

}  // namespace smdist
