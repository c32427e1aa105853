// SPDX-License-Identifier: Apache-2.0
// Peers on this host, and the memory that this rank shares with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/arena.h"
#include "memory/arena_layout.h"
#include "smdist/options.h"
#include "transport/ring_buffer.h"

namespace smdist {

// Owns this rank's arena and the ring buffers to the other ranks of the host. The arena contains
// the parts of ArenaLayout, then a RingHead, then a RingSide for each rank of the host, in rank
// order.
//
// Thread safety: has_events() and ScopedSleepFlag may be used by any thread between open() and
// close(), everything else by one thread.
class SharedMemoryPeers final {
 public:
  explicit SharedMemoryPeers(const Options& options);

  // Return whether there is a ring buffer for the peer.
  bool shares_with(int peer) const { return rings_.count(peer) > 0; }
  // Create the arena, if the host has other ranks and the options allow it. Throws SystemError.
  void open();
  void close();

  bool is_open() const { return arena_ != nullptr; }
  int fd() const { return is_open() ? arena_->fd() : -1; }
  // Return the arena without its ring buffers; empty if there is none.
  Span arena() const { return is_open() ? Span{arena_->span().data, layout_.bytes} : Span{}; }
  // Return the owner of the arena, which remains mapped as long as this object exists.
  std::shared_ptr<const void> arena_owner() const { return arena_; }
  // Return the arena of a peer without its ring buffers; empty if it has not been received.
  Span arena_of(int peer) const;
  RingBuffer& ring(int peer) {
    return rings_.at(peer);
  }  // throws std::out_of_range if there is none
  const std::vector<int>& peers() const { return peers_; }  // peers with a ring buffer
  bool has_events() const;

  // Marks this rank as sleeping: while the object exists, peers notify this rank when they write.
  class ScopedSleepFlag final {
   public:
    explicit ScopedSleepFlag(SharedMemoryPeers& peers) : peers_(peers) { peers_.add_sleepers(1); }
    ~ScopedSleepFlag() { peers_.add_sleepers(-1); }
    ScopedSleepFlag(const ScopedSleepFlag&) = delete;
    ScopedSleepFlag& operator=(const ScopedSleepFlag&) = delete;

   private:
    SharedMemoryPeers& peers_;
  };

 private:
  RingBuffer::Offsets offsets_of(int rank) const;
  void add_sleepers(int number);
  uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(arena_->span().data) + offset; }

  const Options& options_;
  const ArenaLayout layout_;
  std::shared_ptr<Arena> arena_;  // null: not open
  std::vector<int> peers_;
  std::map<int, RingBuffer> rings_;  // ring buffers by peer
};

}  // namespace smdist
