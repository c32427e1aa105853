// SPDX-License-Identifier: Apache-2.0
// Interface of the transports, which move messages between ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Size of the header of a message.
constexpr size_t kHeaderBytes = 48;
using HeaderBytes = std::array<uint8_t, kHeaderBytes>;

// A header of fixed size and a payload. Only the sink interprets headers: a header contains the
// length of the payload and its destination.
struct Message {
  HeaderBytes header{};
  // Memory of the caller that is read in place. It must not change until on_sent() or
  // on_peer_lost() is called, or release_payloads() has been called for it. Afterwards it may
  // change only after detach_payloads().
  Span payload;
  // Short payload that is copied into the message; used instead of `payload`.
  std::string text;
  // Number that is passed to on_sent(). 0: on_sent() is not called.
  uint64_t token = 0;
  // Number of the lane (connection) that carries the message, below num_lanes().
  uint32_t lane = 0;
};

// Receives the events of a transport. All calls come from inside poll().
class Sink {
 public:
  virtual ~Sink() = default;

  // Called when a connection to the peer has been made.
  virtual void on_connected(int peer) = 0;

  // Called when the header of a message has arrived. Returns the memory for its payload. If the
  // data pointer is null and the length is above zero, the transport discards the payload. Throws
  // PeerError if the header is invalid; the connection to the peer is then closed.
  virtual Span on_header(int peer, const HeaderBytes& header) = 0;

  // Called instead of on_header() for a message that arrives over another lane than lane 0, which
  // may carry only payloads of the caller's memory.
  virtual Span on_extra_lane_header(int peer, const HeaderBytes& header) {
    return on_header(peer, header);
  }

  // Called when the payload is in the memory that on_header() returned. May throw PeerError, too.
  virtual void on_message(int peer, const HeaderBytes& header) = 0;

  // Called when a connection to the peer has carried bytes that its check refuses. The message that
  // they belong to is not handed on, nor any later one of that connection. reason: as below. A sink
  // that does nothing here learns of the end of the connection only.
  virtual void on_altered(int, const std::string&) {}

  // Called when the whole message has been sent, and its memory may be used again.
  virtual void on_sent(int peer, uint64_t token) = 0;

  // Return whether a connection to the peer that has ended should be replaced by another one, as
  // long as the peer's process lives. False: the peer is lost at once.
  virtual bool may_reconnect(int) const { return true; }

  // Called once per peer, when its connection is lost for good. reason: the rest of a sentence that
  // begins with the peer's name.
  virtual void on_peer_lost(int peer, const std::string& reason) = 0;
};

// Statistics that decide whether a waiting thread spins before it sleeps. Each waiting thread has
// its own.
struct SpinPolicy {
  uint32_t num_failed = 0;   // successive spins without an event, so that the thread had to sleep
  uint32_t num_skipped = 0;  // waits without spinning, because spinning failed too often
};

// Interface that sends messages to numbered peers, reliably and in order.
//
// Messages to one peer over one lane arrive in the order of send(); between different peers or
// lanes there is no order. Connections are made on first use and stay until the end. A peer that is
// lost stays lost.
//
// Thread safety: wake(), await() and endpoint() may be called from any thread, at any time; all
// others from one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  // Return the address at which other ranks reach this one.
  virtual Endpoint endpoint() const = 0;

  // Begin to accept and to open connections. peers: endpoints of all ranks in rank order. sink:
  // receiver of events; it must live until close().
  virtual void start(const std::vector<Endpoint>& peers, Sink* sink) = 0;

  // Queue a message. Never blocks, never calls the sink. Messages to a lost peer are dropped.
  virtual void send(int peer, Message message) = 0;

  // Try to send the messages that are queued for the peer at once, instead of in the next poll().
  // Never blocks, never calls the sink.
  virtual void flush_peer(int) {}

  // Use this tuning for messages that are sent from now on. is_last: no later tuning has more
  // lanes, so that further ones can be rejected.
  virtual void tune(const Tuning&, bool is_last) { (void)is_last; }

  // Return the number of lanes (connections) that messages to the peer can use now.
  virtual uint32_t num_lanes(int) { return 1; }

  // Make sure that a connection to the peer is made, although there is no message to send.
  virtual void connect(int) {}

  // Return the arena of this rank: memory that every peer on this host can read. Empty: there is
  // none.
  virtual Span own_arena() { return {}; }

  // Return the owner of the arena: the memory of own_arena() exists at least as long as this
  // object.
  virtual std::shared_ptr<const void> arena_owner() { return nullptr; }

  // Return whether the peer can read this rank's arena when the next message to it arrives.
  virtual bool is_read_by(int) { return false; }

  // Return the arena of a peer, for reading. Empty: this rank has not received it.
  virtual Span arena_of(int) { return {}; }

  // Signal to the peer that data in this rank's arena have changed. Ends the peer's await(), if the
  // peer has enabled signals of this rank. Requires: is_read_by().
  virtual void signal(int) {}
  // Set whether signals of the peer end this rank's await(). Signals that arrived before count,
  // too.
  virtual void enable_signals(int, bool) {}

  // Stop using the payload memory of the messages so far whose header is chosen. Messages that have
  // not been sent in part are dropped; the rest of a message that has been sent in part is copied
  // first; payloads that still arrive are discarded. on_sent() is called at most for those that
  // have been sent already.
  using HeaderFilter = std::function<bool(int peer, const HeaderBytes& header)>;
  virtual void release_payloads(const HeaderFilter& is_chosen) = 0;

  // Stop referring to this memory for messages that have been sent: it is about to change, or to be
  // given back. Such a message is copied if its peer may need it again.
  virtual void detach_payloads(const Span&) {}

  // Send and receive data and call the sink, until an event occurs, the timeout expires, or wake()
  // is called. With a timeout of zero it never blocks.
  virtual void poll(std::chrono::milliseconds timeout) = 0;

  // Block until poll() has something to do, the timeout expires, or wake() is called. Sends and
  // receives no data and does not call the sink. May return early, and never throws.
  virtual void await(std::chrono::milliseconds timeout, SpinPolicy& spin) = 0;

  // Block like await(), on the thread that may call poll(). What has ended the wait is then ready
  // for the next poll(), which need not ask the system again.
  virtual void await_before_poll(std::chrono::milliseconds timeout, SpinPolicy& spin) {
    await(timeout, spin);
  }

  // Return the longest timeout with which await() may be called now, at most the given one. It is
  // zero if there is work that does not depend on the network, and shorter if the transport has a
  // deadline.
  virtual std::chrono::milliseconds max_await(std::chrono::milliseconds timeout) const = 0;

  // Return whether no message is queued and no deadline is set, so that only an event of the
  // network can cause work.
  virtual bool is_quiet() const = 0;

  // End every await() and poll(), including later ones, until clear_wake() is called.
  virtual void wake() = 0;
  virtual void clear_wake() = 0;

  // Close a forked child's copies of all connections, so that peers notice when the parent ends.
  // Locks no mutex. The transport cannot be used afterwards.
  virtual void close_in_child() noexcept {}

  // Send queued messages for at most `limit`, then close all connections. Does not call the sink.
  virtual void close(std::chrono::milliseconds limit) = 0;
};

}  // namespace smdist
