// SPDX-License-Identifier: Apache-2.0
// Interface of the transports, which move messages between ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// A message is a header of fixed size and a payload. Only the sink understands headers: a header
// says how long the payload is and where it belongs.
constexpr size_t kHeaderBytes = 48;
using HeaderBytes = std::array<uint8_t, kHeaderBytes>;

struct Message {
  HeaderBytes header{};
  // Memory of the caller, which is read in place: it must not change until on_sent(),
  // on_peer_lost() or release_payloads().
  Span payload;
  // A short payload that is copied into the message, instead of `payload`.
  std::string text;
  // Passed to on_sent(). 0: on_sent() is not called.
  uint64_t token = 0;
  // The lane that the message takes, below num_lanes().
  uint32_t lane = 0;
};

// Receives the events of a transport. All calls come from inside poll().
class Sink {
 public:
  virtual ~Sink() = default;

  // A connection to the peer has been made.
  virtual void on_connected(int peer) = 0;

  // The header of a message is here: returns where its payload goes and how long it is. If the data
  // pointer is null and the length is above zero, the payload is discarded. Throws PeerError to
  // refuse the header; the peer is then lost.
  virtual Span on_header(int peer, const HeaderBytes& header) = 0;

  // The payload is where on_header() said. May throw PeerError, too.
  virtual void on_message(int peer, const HeaderBytes& header) = 0;

  // The whole message has been sent, and its memory may be used again.
  virtual void on_sent(int peer, uint64_t token) = 0;

  // The connection to the peer is lost for good. `reason` completes a sentence that begins with
  // the peer's name. Called once per peer.
  virtual void on_peer_lost(int peer, const std::string& reason) = 0;
};

// Remembers whether spinning before sleeping has paid lately. Each thread that waits has its own.
struct SpinPolicy {
  uint32_t num_failed = 0;   // spins in a row after which the thread slept all the same
  uint32_t num_skipped = 0;  // waits without a spin, since spinning fails too often
};

// Ordered, reliable messages to numbered peers.
//
// Messages to one peer over one lane arrive in the order of send(); between different peers or
// lanes there is no order. Connections are made on first use and stay until the end. A peer that
// is lost stays lost.
//
// Thread safety: wake(), await() and endpoint() may be called from any thread, at any
// time; all others from one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Endpoint endpoint() const = 0;

  // peers: all ranks' endpoints in rank order. The sink must outlive close().
  virtual void start(const std::vector<Endpoint>& peers, Sink* sink) = 0;

  // Queue a message. Never blocks, never calls the sink. Messages to a lost peer are dropped.
  virtual void send(int peer, Message message) = 0;

  // Try to send the messages queued for the peer now, instead of at the end of poll(). Never calls
  // the sink.
  virtual void hasten(int) {}

  // Use this tuning for messages that are sent from now on.
  virtual void tune(const Tuning&) {}

  // The number of lanes that messages to the peer may take now.
  virtual uint32_t num_lanes(int) { return 1; }

  // Make sure that the peer can reach this rank, although there is nothing to send.
  virtual void connect(int) {}

  // Memory of this rank that every peer on this host can read. Empty: there is none.
  virtual Span own_arena() { return {}; }

  // Return whether the peer can read this rank's arena, by the time the next message to it arrives.
  virtual bool is_read_by(int) { return false; }

  // The arena of a peer, for reading. Empty: the peer has not passed one to this rank.
  virtual Span arena_of(int) { return {}; }

  // Wake the peer, because something has changed in this rank's arena: its await() ends, if the
  // peer expects signals of this rank. Requires: is_read_by().
  virtual void signal(int) {}
  // Say whether signals of the peer end this rank's await(). A signal that came before is not lost.
  virtual void expect(int, bool) {}

  // Stop reading and writing all payload memory that was passed in so far. Messages whose payload
  // has not begun to leave are dropped; the rest of one that has begun is copied; what still comes
  // in for a payload is discarded. No on_sent() is called for any of them.
  virtual void release_payloads() = 0;

  // Move bytes and call the sink, until something has happened, the timeout is over, or wake() is
  // called. With a timeout of zero it never blocks.
  virtual void poll(std::chrono::milliseconds timeout) = 0;

  // Block until poll() would find something, the timeout is over, or wake() is called. Moves no
  // bytes and does not call the sink. May return early, and never throws.
  virtual void await(std::chrono::milliseconds timeout, SpinPolicy& spin) = 0;

  // The longest timeout, up to the given one, with which await() may be called now: zero if there
  // is work that does not wait for the network, and less if the transport has a deadline.
  virtual std::chrono::milliseconds patience(std::chrono::milliseconds timeout) const = 0;

  // Return whether nothing is queued and nothing has a deadline: only the network can bring news.
  virtual bool is_quiet() const = 0;

  // End every await() and poll(), including later ones, until clear_wake().
  virtual void wake() = 0;
  virtual void clear_wake() = 0;

  // For a forked child: close its copies of all connections, so that peers notice when the parent
  // ends. Takes no lock. The transport cannot be used afterwards.
  virtual void close_in_child() noexcept {}

  // Send what is queued, for at most `limit`, then close all connections. Does not call the sink
  // any more.
  virtual void close(std::chrono::milliseconds limit) = 0;
};

}  // namespace smdist
