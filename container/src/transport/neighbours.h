// SPDX-License-Identifier: Apache-2.0
// The ranks of this host, and the memory that this rank shares with them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "memory/arena.h"
#include "memory/arena_layout.h"
#include "smdist/options.h"
#include "transport/ring.h"

namespace smdist {

// An arena has what its layout says first, then a RingHead, then a RingSide for each rank of the
// host, in the order of ranks.
//
// Thread safety: has_news() and Nap may be used by any thread between open() and close(), all
// else by one.
class Neighbours final {
 public:
  explicit Neighbours(const Options& options);

  // Whether there is memory for a ring with the peer.
  bool shares_with(int peer) const { return rings_.count(peer) > 0; }
  // Makes the memory, if there are neighbours and the options allow it. Throws SystemError.
  void open();
  void close();

  bool is_open() const { return arena_.span().bytes > 0; }
  int fd() const { return arena_.fd(); }
  // Without the rings; empty: there is none.
  Span arena() const { return {arena_.span().data, is_open() ? layout_.bytes : 0}; }
  Span arena_of(int peer) const;
  Ring& ring(int peer) { return rings_.at(peer); }  // throws std::out_of_range: there is none
  const std::vector<int>& peers() const { return peers_; }  // with whom there are rings
  bool has_news() const;

  // While it lives, neighbours call this rank when they have written something.
  class Nap final {
   public:
    explicit Nap(Neighbours& who) : who_(who) { who_.add_sleepers(1); }
    ~Nap() { who_.add_sleepers(-1); }
    Nap(const Nap&) = delete;
    Nap& operator=(const Nap&) = delete;

   private:
    Neighbours& who_;
  };

 private:
  Ring::Place place_of(int rank) const;
  void add_sleepers(int number);
  uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(arena_.span().data) + offset; }

  const Options& options_;
  const ArenaLayout layout_;
  Arena arena_;
  std::vector<int> peers_;
  std::map<int, Ring> rings_;  // by peer
};

}  // namespace smdist
