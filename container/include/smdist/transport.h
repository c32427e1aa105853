// SPDX-License-Identifier: Apache-2.0
// How messages move between ranks.
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

// A message is a header of fixed size and a payload. Only the sink reads
// headers; it knows from one how long the payload is and where it belongs.
constexpr size_t kHeaderBytes = 48;
using HeaderBytes = std::array<uint8_t, kHeaderBytes>;

struct Message {
  HeaderBytes header{};
  // The caller's memory, read in place: it must not change until on_sent(),
  // on_peer_lost() or release_payloads().
  Span payload;
  // A short payload that travels with the message instead.
  std::string text;
  // Told to on_sent(); 0: not told.
  uint64_t token = 0;
  // Which of the peer's lanes it takes, below num_lanes().
  uint32_t lane = 0;
};

// Who is told what a transport receives. All calls come from inside poll().
class Sink {
 public:
  virtual ~Sink() = default;

  // A connection to the peer exists from now on.
  virtual void on_connected(int peer) = 0;

  // The placement callback: returns where the payload of a message goes and how
  // long it is. Null data with bytes above zero: the payload is thrown away.
  // Throws PeerError if the header is refused; the peer is then lost.
  virtual Span on_header(int peer, const HeaderBytes& header) = 0;

  // The payload lies where on_header() said. May throw PeerError as well.
  virtual void on_message(int peer, const HeaderBytes& header) = 0;

  // The message has left its memory.
  virtual void on_sent(int peer, uint64_t token) = 0;

  // Nothing more comes from the peer or goes to it. `reason` completes a sentence
  // that begins with the peer's name. Called once per peer.
  virtual void on_peer_lost(int peer, const std::string& reason) = 0;
};

// Whether looking for news before sleeping was worth it lately. Each thread that waits has
// its own.
struct Looking {
  uint32_t num_vain = 0;     // in a row
  uint32_t num_skipped = 0;  // since it is tried now and then only
};

// Ordered, reliable messages to numbered peers.
//
// Messages to one peer over one lane arrive in the order of send(); peers and lanes
// know no order among each other. Connections are made on first use and live until the end: a peer
// that is lost stays lost.
//
// Thread safety: wake(), await() and endpoint() may be called from any thread, at any
// time; all others from one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Endpoint endpoint() const = 0;

  // peers: all ranks' endpoints in rank order. The sink must outlive close().
  virtual void start(const std::vector<Endpoint>& peers, Sink* sink) = 0;

  // Queues a message; never blocks, never calls the sink. Messages to a lost
  // peer are dropped.
  virtual void send(int peer, Message message) = 0;

  // What waits for the peer had better leave now than at the end of poll(). Never
  // calls the sink.
  virtual void hasten(int) {}

  // How it is to move what is sent from now on.
  virtual void tune(const Tuning&) {}

  // Over how many lanes messages to the peer may go by now.
  virtual uint32_t num_lanes(int) { return 1; }

  // Makes sure that the peer can reach us, although there is nothing to send.
  virtual void connect(int) {}

  // Memory that every peer on this host can read; empty: there is none.
  virtual Span own_arena() { return {}; }

  // Whether the peer reads ours, by the time the next message to it arrives.
  virtual bool is_read_by(int) { return false; }

  // The peer's, which this rank reads; empty: it has handed over none.
  virtual Span arena_of(int) { return {}; }

  // Something has changed in our arena that the peer may wait for: its await() ends, if it said
  // that it expects that, or is yet to begin. Requires: is_read_by().
  virtual void signal(int) {}
  virtual void expect(int, bool) {}

  // From now on no payload memory that was handed over so far is read or
  // written: messages with a payload that did not begin to leave are dropped,
  // the rest of one that did is copied, and what still comes in for a payload
  // is thrown away. No on_sent() is called for any of them.
  virtual void release_payloads() = 0;

  // Moves bytes and calls the sink, until something happened or the timeout is
  // over or wake() was called. With a timeout of zero it never blocks.
  virtual void poll(std::chrono::milliseconds timeout) = 0;

  // Blocks until poll() would find something, until the timeout is over, or wake() was
  // called. Moves nothing and calls nobody. May return early, and never throws.
  virtual void await(std::chrono::milliseconds timeout, Looking& looking) = 0;

  // For how long await() may be called at most, up to `timeout`: zero if there is work
  // that need not wait for the network, less where something has its time.
  virtual std::chrono::milliseconds patience(std::chrono::milliseconds timeout) const = 0;

  // Nothing is queued, and nothing has its time: only the network can bring news.
  virtual bool is_quiet() const = 0;

  // Ends every await() and poll(), also later ones, until clear_wake().
  virtual void wake() = 0;
  virtual void clear_wake() = 0;

  // For a forked child: closes its copies of all connections, so that peers see
  // the parent end when it ends. Takes no lock; the transport is of no use after it.
  virtual void close_in_child() noexcept {}

  // Sends what is queued, for at most `limit`, then closes all connections. Calls
  // the sink no more.
  virtual void close(std::chrono::milliseconds limit) = 0;
};

}  // namespace smdist
