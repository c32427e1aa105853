// SPDX-License-Identifier: Apache-2.0
#include "transport/lane.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "smdist/errors.h"
#include "transport/fd_passing.h"
#include "transport/lane_acknowledgement.h"
#include "transport/openssl.h"
#include "transport/socket.h"

namespace smdist {
namespace {

constexpr size_t kTurnBytes = 1 << 20;  // after this many bytes it is the turn of another lane
constexpr size_t kStageBytes =
    4 << 10;                      // space for many short messages, or the beginning of a long one
constexpr size_t kMaxParts = 64;  // parts in one writev()
constexpr size_t kPartsPerMessage = 4;        // header, payload, and a tag of each
constexpr size_t kTagAheadBytes = 256 << 10;  // bytes for which tags are computed ahead of sending
constexpr size_t kTrashBytes = 64 << 10;      // bytes discarded in one read

// Returns whether the kernel has ended a connection because the other host did not answer.
bool is_silence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

iovec part(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

const uint8_t* body_of(const Message& message) {
  if (message.payload.bytes > 0) return static_cast<const uint8_t*>(message.payload.data);
  return reinterpret_cast<const uint8_t*>(message.text.data());
}

size_t body_bytes(const Message& message) {
  return message.payload.bytes > 0 ? message.payload.bytes : message.text.size();
}

// Ends the processing of received bytes of a lane whose check has refused them.
class AlteredError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Consumes bytes of a ring buffer at the end of a scope, also after an exception.
class Consumption final {
 public:
  Consumption(RingBuffer& ring, size_t bytes) : ring_(ring), bytes_(bytes) {}
  ~Consumption() { ring_.consume(bytes_); }
  Consumption(const Consumption&) = delete;
  Consumption& operator=(const Consumption&) = delete;

 private:
  RingBuffer& ring_;
  const size_t bytes_;
};

}  // namespace

void Lane::protect(const Protection& protection, const LaneKeys& keys) {
  if (outgoing_check_ == nullptr) {
    outgoing_check_ = make_frame_check(protection.integrity, keys.outgoing);
    incoming_check_ = make_frame_check(protection.integrity, keys.incoming);
  }
  if (protection.encrypt) stream_ = make_tls_stream(fd_.get(), keys);
}

void Lane::attach_shared_memory(UniqueFd fd, int own_arena, RingBuffer& ring) {
  attach(std::move(fd));
  ring_ = &ring;
  arena_to_send_ = own_arena;
  awaits_arena_ = true;
}

std::string Lane::closed_by(int error) {
  if (is_silence(error)) return end_silent();
  end_ = End::kClosed;
  return std::string("closed its connection (") + std::strerror(error) + ")";
}

Lane::Loss Lane::closed() {
  end_ = End::kClosed;
  return "closed its connection";
}

// Returns the loss of the lane if the peer's host has been silent for too long. Only lanes that
// have sent something since the last check can wait for an answer; the kernel asks on idle ones.
Lane::Loss Lane::check_silence(std::chrono::steady_clock::time_point now) {
  if (!has_sent_ && !silence_clock_.is_running()) return std::nullopt;
  has_sent_ = false;
  const std::optional<AnswerState> state = answer_state(fd_.get());
  if (!state || silence_clock_.update(*state, now) < silence_) return std::nullopt;
  return end_silent();
}

std::string Lane::end_silent() {
  end_ = End::kSilent;
  return silence_text(silence_);
}

void Lane::lose(Sink* sink) {
  report(sink);
  is_lost_ = true;
  arena_to_send_ = -1;
  stream_.reset();
  fd_.reset();
  end_resuming();
  queue_.clear();
  unreported_.clear();
  incoming_ = {};
  if (ring_ != nullptr) ring_->detach();
}

// Widens the buffer and limits the low watermark to a quarter of it, so that the peer can continue
// to send.
void Lane::widen_receive_buffer(size_t bytes) {
  constexpr size_t kGathered = 32 << 10;
  const size_t limit = bytes == 0 ? 0 : std::max(bytes, min_receive_buffer(fd_.get()));
  smdist::widen_receive_buffer(fd_.get(), limit);
  max_low_watermark_ = limit == 0 ? kGathered : std::min(kGathered, limit / 4);
}

void Lane::send(Message message) {
  if (!is_lost_) queue_.push_back({std::move(message), 0});
}

size_t Lane::length_of(const Message& message) const {
  const size_t of_body = body_bytes(message);
  return kHeaderBytes + tag_bytes() + of_body + (of_body > 0 ? tag_bytes() : 0);
}

// Adds the tags of a message that is about to be sent. Once it has them it must be sent, because
// the tags of later messages count it.
void Lane::add_tags(Outgoing& waiting) {
  if (outgoing_check_ == nullptr || waiting.has_tags) return;
  const Message& message = waiting.message;
  outgoing_check_->update(message.header.data(), message.header.size());
  outgoing_check_->finish(waiting.tags.data());
  if (const size_t bytes = body_bytes(message); bytes > 0) {
    outgoing_check_->update(body_of(message), bytes);
    outgoing_check_->finish(waiting.tags.data() + kMaxTagBytes);
  }
  waiting.has_tags = true;
}

// Adds the parts of a message that have not been sent. Returns their number.
size_t Lane::add_parts(const Outgoing& waiting, iovec* parts) const {
  const Message& message = waiting.message;
  const size_t of_body = body_bytes(message);
  const iovec whole[kPartsPerMessage] = {
      part(message.header.data(), kHeaderBytes), part(waiting.tags.data(), tag_bytes()),
      part(body_of(message), of_body),
      part(waiting.tags.data() + kMaxTagBytes, of_body > 0 ? tag_bytes() : 0)};
  size_t count = 0;
  size_t sent = waiting.sent;
  for (const iovec& each : whole) {
    const size_t skipped = std::min(sent, each.iov_len);
    sent -= skipped;
    if (each.iov_len == skipped) continue;
    parts[count++] =
        part(static_cast<const uint8_t*>(each.iov_base) + skipped, each.iov_len - skipped);
  }
  return count;
}

Lane::Loss Lane::write_some(Sink* sink, bool* would_block) {
  if (arena_to_send_ >= 0) {
    const FdTransfer transfer = send_fd(fd_.get(), arena_to_send_);
    if (transfer == FdTransfer::kFailed) return closed_by(errno);
    if (transfer == FdTransfer::kBlocked) return std::nullopt;
    arena_to_send_ = -1;
  }
  if (awaits_arena_) {
    *would_block = true;
    return std::nullopt;
  }
  queue_acknowledgement();
  report(sink);
  if (stream_ != nullptr && stream_->flush() != 0) {
    if (errno != EAGAIN) return closed_by(errno);
    *would_block = true;
    return std::nullopt;
  }
  for (size_t turn = 0; !queue_.empty() && turn < kTurnBytes;) {
    const ssize_t sent = write_once();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      *would_block = true;
      return std::nullopt;
    }
    if (sent < 0 && errno == EBADMSG) return stream_->fault();
    if (sent < 0) return closed_by(errno);
    turn += static_cast<size_t>(sent);
    report(sink);
  }
  return std::nullopt;
}

void Lane::write_early() {
  if (!is_live() || awaits_arena_ || queue_.empty()) return;
  queue_acknowledgement();
  write_once();
}

ssize_t Lane::write_once() {
  iovec parts[kMaxParts];
  size_t count = 0;
  size_t bytes = 0;
  const size_t most = outgoing_check_ != nullptr || stream_ != nullptr ? kTagAheadBytes : SIZE_MAX;
  for (Outgoing& waiting : queue_) {
    if (count + kPartsPerMessage > kMaxParts || bytes >= most) break;
    if (is_full() && !must_go(waiting)) break;
    add_tags(waiting);
    count += add_parts(waiting, parts + count);
    bytes += length_of(waiting.message) - waiting.sent;
  }
  if (count == 0) {
    errno = EAGAIN;
    return -1;
  }
  msghdr what{};
  what.msg_iov = parts;
  what.msg_iovlen = count;
  const ssize_t sent = ring_ != nullptr ? write_to_ring(parts, count)
                       : stream_ != nullptr
                           ? stream_->write(parts, count)
                           : ::sendmsg(fd_.get(), &what, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) account(static_cast<size_t>(sent));
  return sent;
}

ssize_t Lane::write_to_ring(const iovec* parts, size_t count) {
  try {
    const size_t sent = ring_->write(parts, count);
    if (ring_->must_notify()) notify();
    if (sent > 0) return static_cast<ssize_t>(sent);
    errno = EAGAIN;
  } catch (const PeerError&) {
    errno = EPROTO;
  }
  return -1;
}

// Signals to the peer, unless it has not sent its memory yet: then it does not read this rank's
// either.
void Lane::signal() {
  if (is_live() && !awaits_arena_ && ring_->signal()) notify();
}

// Sends a notification. If the peer has ended, the next read from the socket reports that.
void Lane::notify() {
  const ssize_t sent = ::send(fd_.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) ring_->undo_notify();
}

// Reports sent messages to the sink. Empties the list first, because the sink may change the queue.
void Lane::report(Sink* sink) {
  for (const uint64_t token : std::exchange(unreported_, {})) {
    if (sink != nullptr) sink->on_sent(peer_, token);
  }
}

void Lane::account(size_t sent) {
  has_sent_ = true;
  written_ += sent;
  while (sent > 0) {
    Outgoing& front = queue_.front();
    const size_t step = std::min(sent, length_of(front.message) - front.sent);
    front.sent += step;
    sent -= step;
    if (front.sent < length_of(front.message)) return;
    if (front.message.token != 0 && !front.is_reported) unreported_.push_back(front.message.token);
    if (is_resumable_) keep(std::move(front));
    queue_.pop_front();
  }
}

Lane::Loss Lane::take_arena(bool* is_there) {
  UniqueFd fd;
  const FdTransfer transfer = receive_fd(fd_.get(), &fd);
  *is_there = transfer == FdTransfer::kDone;
  if (transfer == FdTransfer::kBlocked) return std::nullopt;
  if (transfer == FdTransfer::kFailed) {
    return "could not pass its shared memory (its process has ended, or this rank has too many "
           "open files)";
  }
  try {
    ring_->attach(Arena::adopt(std::move(fd)));
  } catch (const SystemError& error) {
    return std::string("passed shared memory that this rank cannot map: ") + error.what();
  }
  awaits_arena_ = false;
  return std::nullopt;
}

Lane::Loss Lane::read_some(Sink* sink) {
  if (ring_ != nullptr) {
    const Loss end =
        read_notifications();  // the end of the connection comes after the bytes in the ring buffer
    if (awaits_arena_) return end;
    const Loss fault = read_ring(sink);
    return fault ? fault : end;
  }
  Loss loss = read_turn(sink);
  if (!loss) update_low_watermark();
  return loss;
}

// Reads notifications, which contain no data: they only mean that the ring buffer has changed.
Lane::Loss Lane::read_notifications() {
  if (awaits_arena_) {
    bool is_there = false;
    if (Loss loss = take_arena(&is_there)) return loss;
    if (!is_there) return std::nullopt;
  }
  uint8_t calls[64];
  const ssize_t got = ::recv(fd_.get(), calls, sizeof calls, MSG_DONTWAIT);
  if (got == 0) return closed();
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Loss() : closed_by(errno);
  ring_->acknowledge(static_cast<uint64_t>(got));
  return std::nullopt;
}

Lane::Loss Lane::read_ring(Sink* sink) {
  try {
    ring_->take_signals();
    for (size_t turn = 0; turn < kTurnBytes;) {
      const Span next = ring_->peek();
      if (next.bytes == 0) break;
      const Consumption consumption(*ring_, next.bytes);
      if (sink != nullptr) take(static_cast<const uint8_t*>(next.data), next.bytes, sink);
      turn += next.bytes;
    }
    if (ring_->must_notify_of_space()) notify();
  } catch (const PeerError& error) {
    return error.what();
  }
  return std::nullopt;
}

void Lane::end_writing() {
  if (stream_ != nullptr) stream_->end_writing();
  ::shutdown(fd_.get(), SHUT_WR);
}

// Sets the socket's low watermark: within a long payload, one wake-up per part is enough. TLS has
// none, because it takes bytes from the socket ahead.
void Lane::update_low_watermark() {
  awaits_bulk_data_ = incoming_.is_open && incoming_.missing >= max_low_watermark_;
  if (stream_ != nullptr) return;
  const int wanted = awaits_bulk_data_ ? static_cast<int>(max_low_watermark_) : 1;
  if (wanted == low_watermark_) return;
  low_watermark_ = wanted;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

ssize_t Lane::read_once(const iovec* parts, size_t count, bool may_receive) {
  if (stream_ != nullptr) return stream_->read(parts, count, may_receive);
  return ::readv(fd_.get(), parts, static_cast<int>(count));
}

// Reads until the socket is empty, or until it is the turn of another lane. In the latter case
// nothing may stay in the stream, because epoll does not report it.
Lane::Loss Lane::read_turn(Sink* sink) {
  uint8_t trash[kTrashBytes];
  uint8_t stage[kStageBytes];
  if (is_deaf_) sink = nullptr;
  for (size_t turn = 0; turn < kTurnBytes || (stream_ != nullptr && stream_->has_unread());) {
    const bool is_trash = incoming_.data == nullptr;
    const size_t direct = is_trash ? std::min(incoming_.missing, sizeof trash) : incoming_.missing;
    // Read into the staging buffer only if the whole payload fits before it.
    const bool is_staging = direct == incoming_.missing;
    iovec parts[2] = {part(is_trash ? trash : incoming_.data, direct), part(stage, sizeof stage)};
    const ssize_t got = read_once(parts, is_staging ? 2 : 1, turn < kTurnBytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    if (got < 0 && errno == EBADMSG) return refuse(sink, stream_->fault());
    if (got < 0) return closed_by(errno);
    if (got == 0) return closed();
    turn += static_cast<size_t>(got);
    const bool is_all = static_cast<size_t>(got) < direct + (is_staging ? sizeof stage : 0);
    if (sink == nullptr) continue;
    const size_t of_payload = std::min(static_cast<size_t>(got), direct);
    try {
      if (of_payload > 0) {
        received_ += of_payload;
        take_payload(static_cast<const uint8_t*>(parts[0].iov_base), of_payload, sink);
      }
      take(stage, static_cast<size_t>(got) - of_payload, sink);
    } catch (const AlteredError& error) {
      refuse(sink, error.what());
      sink = nullptr;
    } catch (const PeerError& error) {
      return error.what();
    }
    if (is_all && stream_ == nullptr) break;  // the socket is empty; epoll reports later bytes
  }
  return std::nullopt;
}

// Discards the message that is being received, and all that follows on this lane.
Lane::Loss Lane::refuse(Sink* sink, const std::string& reason) {
  is_deaf_ = true;
  incoming_ = {};
  if (sink != nullptr) sink->on_altered(peer_, reason);
  return reason;
}

// Processes bytes of a payload that are in their place, or at `at` if they are discarded.
void Lane::take_payload(const uint8_t* at, size_t bytes, Sink* sink) {
  if (incoming_check_ != nullptr) incoming_check_->update(at, bytes);
  if (incoming_.data != nullptr) incoming_.data += bytes;
  incoming_.missing -= bytes;
  if (incoming_.missing == 0 && incoming_check_ == nullptr) finish_message(sink);
}

void Lane::finish_message(Sink* sink) {
  incoming_.is_open = false;
  sink->on_message(peer_, incoming_.header);
}

// Splits received bytes into headers, payloads and tags. The last message may be incomplete.
void Lane::take(const uint8_t* data, size_t bytes, Sink* sink) {
  while (bytes > 0) {
    size_t step = 0;
    if (!incoming_.is_open) {
      step = take_header(data, bytes, sink);
    } else if (incoming_.missing > 0) {
      step = std::min(bytes, incoming_.missing);
      if (incoming_.data != nullptr) std::memcpy(incoming_.data, data, step);
      take_payload(data, step, sink);
    } else {
      step = take_tag(data, bytes, sink);
    }
    received_ += step;
    data += step;
    bytes -= step;
  }
}

// Processes bytes of a header or of its tag. Returns their number.
size_t Lane::take_header(const uint8_t* data, size_t bytes, Sink* sink) {
  const bool is_header = header_bytes_ < kHeaderBytes;
  const size_t end = is_header ? kHeaderBytes : kHeaderBytes + tag_bytes();
  const size_t step = std::min(bytes, end - header_bytes_);
  uint8_t* to =
      is_header ? &incoming_.header[header_bytes_] : &incoming_.tag[header_bytes_ - kHeaderBytes];
  std::memcpy(to, data, step);
  header_bytes_ += step;
  if (header_bytes_ < kHeaderBytes + tag_bytes()) return step;
  if (incoming_check_ != nullptr) {
    incoming_check_->update(incoming_.header.data(), kHeaderBytes);
    if (!incoming_check_->matches(incoming_.tag.data())) {
      throw AlteredError(incoming_check_->fault());
    }
  }
  if (is_resumable_ && is_acknowledgement(incoming_.header)) {
    take_acknowledgement();
  } else {
    begin_message(sink);
  }
  return step;
}

// Processes bytes of the tag of a payload. Returns their number.
size_t Lane::take_tag(const uint8_t* data, size_t bytes, Sink* sink) {
  const size_t step = std::min(bytes, tag_bytes() - incoming_.tag_bytes);
  std::memcpy(&incoming_.tag[incoming_.tag_bytes], data, step);
  incoming_.tag_bytes += step;
  if (incoming_.tag_bytes < tag_bytes()) return step;
  if (!incoming_check_->matches(incoming_.tag.data())) {
    throw AlteredError(incoming_check_->fault());
  }
  finish_message(sink);
  return step;
}

void Lane::begin_message(Sink* sink) {
  header_bytes_ = 0;
  const Span place = is_extra_ ? sink->on_extra_lane_header(peer_, incoming_.header)
                               : sink->on_header(peer_, incoming_.header);
  incoming_.data = static_cast<uint8_t*>(place.data);
  incoming_.missing = place.bytes;
  incoming_.is_open = true;
  incoming_.tag_bytes = 0;
  if (place.bytes == 0) finish_message(sink);
}

}  // namespace smdist
