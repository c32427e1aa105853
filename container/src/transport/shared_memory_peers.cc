// SPDX-License-Identifier: Apache-2.0
#include "transport/shared_memory_peers.h"

#include <algorithm>
#include <tuple>

namespace smdist {

SharedMemoryPeers::SharedMemoryPeers(const Options& options)
    : options_(options), layout_(options) {}

void SharedMemoryPeers::open() {
  if (layout_.ranks.size() == 1 || !options_.shares_memory) return;
  arena_ = std::make_shared<Arena>(Arena::create(offsets_of(options_.rank).head + sizeof(RingHead) +
                                                 layout_.ranks.size() * sizeof(RingSide)));
  for (const int peer : layout_.ranks) {
    if (peer == options_.rank) continue;
    auto& ours = *reinterpret_cast<RingSide*>(at(offsets_of(peer).side));
    rings_.emplace(std::piecewise_construct, std::forward_as_tuple(peer),
                   std::forward_as_tuple(ours, offsets_of(options_.rank)));
    peers_.push_back(peer);
  }
}

void SharedMemoryPeers::close() {
  peers_.clear();
  rings_.clear();
  arena_.reset();
}

Span SharedMemoryPeers::arena_of(int peer) const {
  const auto ring = rings_.find(peer);
  if (ring == rings_.end() || ring->second.arena().bytes == 0) return {};
  return {ring->second.arena().data, layout_.bytes};
}

RingBuffer::Offsets SharedMemoryPeers::offsets_of(int rank) const {
  constexpr size_t kLine = alignof(RingSide);
  const auto index =
      std::lower_bound(layout_.ranks.begin(), layout_.ranks.end(), rank) - layout_.ranks.begin();
  const size_t head = (layout_.bytes + kLine - 1) / kLine * kLine;
  return {head, head + sizeof(RingHead) + static_cast<size_t>(index) * sizeof(RingSide)};
}

bool SharedMemoryPeers::has_events() const {
  return std::any_of(rings_.begin(), rings_.end(),
                     [](const auto& each) { return each.second.has_events(); });
}

void SharedMemoryPeers::add_sleepers(int number) {
  if (!is_open()) return;
  auto* head = reinterpret_cast<RingHead*>(at(offsets_of(options_.rank).head));
  head->sleepers.fetch_add(static_cast<uint32_t>(number));
}

}  // namespace smdist
