// SPDX-License-Identifier: Apache-2.0
// Fixed-size blocks of an arena that hold messages for other ranks of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "smdist/operation.h"

namespace smdist {

// Allocates blocks and counts their readers.
//
// A block is free, or *held* by the ranks that have been sent a reference to it and have not
// released it. A reader holds at most its share of the blocks, so a slow reader delays only
// messages to itself.
//
// Bytes for several readers are written once: a request for the same bytes of the same operation
// returns the same block, as long as another reader still holds it.
//
// Thread safety: none.
class BlockPool final {
 public:
  // Source of a block: bytes of this process, which do not change during the operation.
  struct Content {
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    uint64_t operation = 0;

    bool operator<(const Content& other) const;
  };

  // per_reader: the number of blocks that one reader may hold.
  BlockPool(Span arena, size_t block_bytes, uint32_t per_reader);

  size_t block_bytes() const { return block_bytes_; }
  bool has_free_block_for(int reader) const;

  // Copies the content to a block, unless one has it already, and returns the number of that
  // block. The reader holds it from now on. Requires: has_free_block_for(reader), content.bytes
  // <= block_bytes().
  uint32_t put(int reader, const Content& content);

  // Returns false if the reader did not hold the block.
  bool release(int reader, uint32_t block);
  void release_all(int reader);

 private:
  struct Block {
    std::set<int> readers;
    Content content;
  };

  uint32_t fill(const Content& content);
  void drop(int reader, uint32_t block);

  const Span arena_;
  const size_t block_bytes_;
  const uint32_t per_reader_;
  std::vector<Block> blocks_;
  std::vector<uint32_t>
      free_;  // used last in, first out: the block freed last is still in the cache
  std::map<Content, uint32_t> filled_;
  std::map<int, uint32_t> held_;  // number of blocks by reader
};

}  // namespace smdist
