// SPDX-License-Identifier: Apache-2.0
#include "memory/block_pool.h"

#include <cstring>
#include <tuple>

namespace smdist {

bool BlockPool::Content::operator<(const Content& other) const {
  return std::tie(data, bytes, operation) < std::tie(other.data, other.bytes, other.operation);
}

BlockPool::BlockPool(Span arena, size_t block_bytes, uint32_t per_reader)
    : arena_(arena),
      block_bytes_(block_bytes),
      per_reader_(per_reader),
      blocks_(arena.bytes / block_bytes) {
  for (uint32_t i = static_cast<uint32_t>(blocks_.size()); i > 0; --i) free_.push_back(i - 1);
}

bool BlockPool::has_free_block_for(int reader) const {
  const auto held = held_.find(reader);
  return !free_.empty() && (held == held_.end() || held->second < per_reader_);
}

uint32_t BlockPool::put(int reader, const Content& content) {
  const auto found = filled_.find(content);
  const bool is_news = found != filled_.end() && blocks_[found->second].readers.count(reader) == 0;
  const uint32_t block = is_news ? found->second : fill(content);
  blocks_[block].readers.insert(reader);
  ++held_[reader];
  return block;
}

uint32_t BlockPool::fill(const Content& content) {
  const uint32_t block = free_.back();
  free_.pop_back();
  std::memcpy(static_cast<uint8_t*>(arena_.data) + block * block_bytes_, content.data,
              content.bytes);
  blocks_[block].content = content;
  filled_[content] = block;
  return block;
}

bool BlockPool::release(int reader, uint32_t block) {
  if (block >= blocks_.size() || blocks_[block].readers.count(reader) == 0) return false;
  drop(reader, block);
  return true;
}

void BlockPool::release_all(int reader) {
  for (uint32_t block = 0; block < blocks_.size(); ++block) release(reader, block);
}

void BlockPool::drop(int reader, uint32_t number) {
  Block& block = blocks_[number];
  block.readers.erase(reader);
  --held_[reader];
  if (!block.readers.empty()) return;
  const auto filled = filled_.find(block.content);
  if (filled != filled_.end() && filled->second == number) filled_.erase(filled);
  free_.push_back(number);
}

}  // namespace smdist
