// SPDX-License-Identifier: Apache-2.0
// Fixed-size blocks of an arena, through which messages are passed to other ranks of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "smdist/operation.h"

namespace smdist {

// Allocates blocks and records which ranks still have to read them.
//
// A block is free, or *held* by its readers: ranks that have received a reference to it and have
// not released it yet. Each reader can hold a limited number of blocks, so that a slow reader
// delays only the messages to itself.
//
// Bytes for several readers are written once: put() with the same bytes of the same operation
// returns the same block, as long as another reader still holds it.
//
// Thread safety: none.
class BlockPool final {
 public:
  // Bytes of this process that are copied to a block; they do not change during the operation.
  struct Content {
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    uint64_t operation = 0;  // serial number of the operation, see Submission::serial

    bool operator<(const Content& other) const;
  };

  // per_reader: maximum number of blocks that one reader may hold.
  BlockPool(Span arena, size_t block_bytes, uint32_t per_reader);

  size_t block_bytes() const { return block_bytes_; }
  // Return whether a block is free, and the reader holds fewer blocks than its limit.
  bool has_free_block_for(int reader) const;

  // Copy the content to a free block, unless a block already contains it, and return the number of
  // the block. From now on the reader holds the block. Requires: has_free_block_for(reader),
  // content.bytes <= block_bytes().
  uint32_t put(int reader, const Content& content);

  // Record that the reader has read the block. Returns false if the reader did not hold it.
  bool release(int reader, uint32_t block);
  // Record that the reader, which is lost, reads none of its blocks any more.
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
      free_;  // the block that was freed last is used first, because it is still in the cache
  std::map<Content, uint32_t> filled_;
  std::map<int, uint32_t> held_;  // number of held blocks, by reader
};

}  // namespace smdist
