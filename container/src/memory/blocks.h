// SPDX-License-Identifier: Apache-2.0
// The blocks of an arena that other ranks read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "smdist/operation.h"

namespace smdist {

// A block is free, or *held* by those who were told to read it. Nobody holds more
// than his share of the blocks, so that who is slow keeps only his own waiting.
//
// What several ranks are to read is written once: the same bytes for the same
// operation, told to another rank while the block is still held, are the same block.
//
// Thread safety: none.
class Blocks final {
 public:
  // What a block holds: bytes of this process, as they are during an operation.
  struct Content {
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    uint64_t operation = 0;

    bool operator<(const Content& other) const;
  };

  // The arena has room for `per_reader` blocks for each of several readers.
  Blocks(Span arena, size_t block_bytes, uint32_t per_reader);

  size_t block_bytes() const { return block_bytes_; }
  bool has_room_for(int reader) const;

  // The number of a block with this content, which the reader holds from now on.
  // Requires: has_room_for(reader), content.bytes <= block_bytes().
  uint32_t put(int reader, const Content& content);

  // False if the reader did not hold the block.
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
  std::vector<uint32_t> free_;  // the last one freed is warm in the cache, and used first
  std::map<Content, uint32_t> filled_;
  std::map<int, uint32_t> held_;  // by reader: how many
};

}  // namespace smdist
