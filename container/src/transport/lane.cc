// SPDX-License-Identifier: Apache-2.0
#include "transport/lane.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "smdist/errors.h"
#include "transport/handover.h"
#include "transport/socket.h"

namespace smdist {
namespace {

constexpr size_t kTurnBytes = 1 << 20;    // then it is another lane's turn
constexpr size_t kStageBytes = 4 << 10;   // many short messages, or the head of a long one
constexpr size_t kMaxParts = 64;          // of one writev
constexpr size_t kTrashBytes = 64 << 10;  // thrown away in one read

std::string closed_text(int error) {
  if (error == ETIMEDOUT) return "has not answered for 10 s";
  return std::string("closed its connection (") + std::strerror(error) + ")";
}

iovec part(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

const uint8_t* body_of(const Message& message) {
  if (message.payload.bytes > 0) return static_cast<const uint8_t*>(message.payload.data);
  return reinterpret_cast<const uint8_t*>(message.text.data());
}

size_t body_bytes(const Message& message) {
  return message.payload.bytes > 0 ? message.payload.bytes : message.text.size();
}

}  // namespace

void Lane::attach_local(UniqueFd fd, int own_arena) {
  attach(std::move(fd));
  is_local_ = true;
  owed_arena_ = own_arena;
  awaits_arena_ = true;
}

void Lane::lose(Sink* sink) {
  report(sink);
  is_lost_ = true;
  owed_arena_ = -1;
  fd_.reset();
  queue_.clear();
  unreported_.clear();
  incoming_ = {};
  staged_.clear();
}

// What gathers must leave the peer room to go on.
void Lane::widen_arrivals(size_t bytes) {
  constexpr size_t kGathered = 32 << 10;
  const size_t limit = bytes == 0 ? 0 : std::max(bytes, few_segments(fd_.get()));
  smdist::widen_arrivals(fd_.get(), limit);
  most_gathered_ = limit == 0 ? kGathered : std::min(kGathered, limit / 4);
}

void Lane::send(Message message) {
  if (!is_lost_) queue_.push_back({std::move(message), 0});
}

size_t Lane::length_of(const Message& message) const { return kHeaderBytes + body_bytes(message); }

void Lane::release_payloads() {
  std::deque<Waiting> kept;
  for (Waiting& waiting : queue_) {
    Message& message = waiting.message;
    if (message.payload.bytes > 0) {
      if (waiting.sent == 0) continue;
      message.text.assign(static_cast<const char*>(message.payload.data), message.payload.bytes);
      message.payload = {};
      message.token = 0;
    }
    kept.push_back(std::move(waiting));
  }
  queue_ = std::move(kept);
  unreported_.clear();
  incoming_.data = nullptr;
}

Lane::Loss Lane::write_some(Sink* sink, bool* would_block) {
  if (owed_arena_ >= 0) {
    const Handover handover = hand_over(fd_.get(), owed_arena_);
    *would_block = handover == Handover::kBlocked;
    if (handover == Handover::kFailed) return closed_text(errno);
    if (handover == Handover::kBlocked) return std::nullopt;
    owed_arena_ = -1;
  }
  report(sink);
  for (size_t turn = 0; !queue_.empty() && turn < kTurnBytes;) {
    const ssize_t sent = write_once();
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      *would_block = true;
      return std::nullopt;
    }
    if (sent < 0) return closed_text(errno);
    turn += static_cast<size_t>(sent);
    report(sink);
  }
  return std::nullopt;
}

void Lane::write_early() {
  if (is_live() && owed_arena_ < 0 && !queue_.empty()) write_once();
}

ssize_t Lane::write_once() {
  iovec parts[kMaxParts];
  size_t count = 0;
  for (auto it = queue_.begin(); it != queue_.end() && count + 2 <= kMaxParts; ++it) {
    const Message& message = it->message;
    const size_t of_header = std::min(it->sent, kHeaderBytes);
    const size_t of_body = it->sent - of_header;
    if (of_header < kHeaderBytes) {
      parts[count++] = part(message.header.data() + of_header, kHeaderBytes - of_header);
    }
    const size_t left = body_bytes(message) - of_body;
    if (left > 0) parts[count++] = part(body_of(message) + of_body, left);
  }
  msghdr what{};
  what.msg_iov = parts;
  what.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(fd_.get(), &what, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) account(static_cast<size_t>(sent));
  return sent;
}

// First all accounts, then all calls: a call may change the queue.
void Lane::report(Sink* sink) {
  for (const uint64_t token : std::exchange(unreported_, {})) {
    if (sink != nullptr) sink->on_sent(peer_, token);
  }
}

void Lane::account(size_t sent) {
  while (sent > 0) {
    Waiting& front = queue_.front();
    const size_t step = std::min(sent, length_of(front.message) - front.sent);
    front.sent += step;
    sent -= step;
    if (front.sent < length_of(front.message)) return;
    if (front.message.token != 0) unreported_.push_back(front.message.token);
    queue_.pop_front();
  }
}

Lane::Loss Lane::take_arena(bool* is_there) {
  UniqueFd fd;
  const Handover handover = take_over(fd_.get(), &fd);
  *is_there = handover == Handover::kDone;
  if (handover == Handover::kBlocked) return std::nullopt;
  if (handover == Handover::kFailed) {
    return "could not hand its memory over (it is gone, or this rank may open no more files)";
  }
  try {
    arena_ = Arena::adopt(std::move(fd));
  } catch (const SystemError& error) {
    return std::string("handed over memory that this rank cannot read: ") + error.what();
  }
  awaits_arena_ = false;
  return std::nullopt;
}

Lane::Loss Lane::read_some(Sink* sink) {
  Loss loss = read_turn(sink);
  if (!loss && !is_local_) gather();
  return loss;
}

// The rest of a long payload is worth waking up for when a part has gathered.
void Lane::gather() {
  const bool is_long = incoming_.is_open && incoming_.missing >= most_gathered_;
  const int wanted = is_long ? static_cast<int>(most_gathered_) : 1;
  if (wanted == gathered_) return;
  gathered_ = wanted;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

Lane::Loss Lane::read_turn(Sink* sink) {
  if (awaits_arena_) {
    bool is_there = false;
    if (Loss loss = take_arena(&is_there)) return loss;
    if (!is_there) return std::nullopt;
  }
  uint8_t trash[kTrashBytes];
  uint8_t stage[kStageBytes];
  for (size_t turn = 0; turn < kTurnBytes;) {
    const bool is_trash = incoming_.data == nullptr;
    const size_t direct = is_trash ? std::min(incoming_.missing, sizeof trash) : incoming_.missing;
    // Bytes for the stage may follow only if the whole payload fits before them.
    const bool is_staging = direct == incoming_.missing;
    iovec parts[2] = {part(is_trash ? trash : incoming_.data, direct), part(stage, sizeof stage)};
    const ssize_t got = ::readv(fd_.get(), parts, is_staging ? 2 : 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    if (got < 0) return closed_text(errno);
    if (got == 0) return "closed its connection";
    turn += static_cast<size_t>(got);
    const bool is_all = static_cast<size_t>(got) < direct + (is_staging ? sizeof stage : 0);
    if (sink == nullptr) continue;
    const size_t of_payload = std::min(static_cast<size_t>(got), direct);
    staged_.assign(stage, stage + (static_cast<size_t>(got) - of_payload));
    try {
      if (of_payload > 0) take_payload(of_payload, sink);
      take_staged(sink);
    } catch (const PeerError& error) {
      return error.what();
    }
    if (is_all) break;  // that was there; of what comes epoll will tell
  }
  return std::nullopt;
}

void Lane::take_payload(size_t bytes, Sink* sink) {
  if (incoming_.data != nullptr) incoming_.data += bytes;
  incoming_.missing -= bytes;
  if (incoming_.missing > 0) return;
  incoming_.is_open = false;
  sink->on_message(peer_, incoming_.header);
}

// Afterwards at most a part of a header is staged; it is kept in incoming_.
void Lane::take_staged(Sink* sink) {
  size_t at = 0;
  while (at < staged_.size()) {
    if (incoming_.is_open) {
      const size_t bytes = std::min(staged_.size() - at, incoming_.missing);
      if (incoming_.data != nullptr) std::memcpy(incoming_.data, &staged_[at], bytes);
      at += bytes;
      take_payload(bytes, sink);
      continue;
    }
    const size_t bytes = std::min(staged_.size() - at, kHeaderBytes - header_bytes_);
    std::memcpy(&incoming_.header[header_bytes_], &staged_[at], bytes);
    at += bytes;
    header_bytes_ += bytes;
    if (header_bytes_ == kHeaderBytes) begin_message(sink);
  }
  staged_.clear();
}

void Lane::begin_message(Sink* sink) {
  header_bytes_ = 0;
  const Span place = sink->on_header(peer_, incoming_.header);
  incoming_.data = static_cast<uint8_t*>(place.data);
  incoming_.missing = place.bytes;
  incoming_.is_open = true;
  if (place.bytes == 0) take_payload(0, sink);
}

}  // namespace smdist
