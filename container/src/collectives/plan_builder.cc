// SPDX-License-Identifier: Apache-2.0
#include "collectives/plan_builder.h"

#include <utility>

#include "collectives/sharding.h"

namespace smdist {
namespace {

constexpr uint32_t kNoStep = UINT32_MAX;
constexpr size_t kStepsOfShortPlans = 8;  // memory for them is allocated at once

}  // namespace

Region part_of(const Region& region, size_t offset, size_t bytes) {
  return {region.buffer, region.index, region.offset + offset, bytes};
}

PlanBuilder::PlanBuilder(int rank, int size) : rank_(rank), size_(size) {
  plan_.steps.reserve(kStepsOfShortPlans);
}

std::vector<int> PlanBuilder::rotated_peers() const {
  std::vector<int> peers;
  peers.reserve(static_cast<size_t>(size_));
  for (int step = 1; step < size_; ++step) peers.push_back((rank_ + step) % size_);
  return peers;
}

uint32_t PlanBuilder::send(int peer, uint32_t tag, const Region& from, std::vector<uint32_t> after,
                           bool awaits_credit) {
  if (from.bytes == 0) return kNoStep;
  return add({StepKind::kSend,
              peer,
              tag,
              {from},
              {},
              std::move(after),
              ReduceStage::kWhole,
              awaits_credit});
}

uint32_t PlanBuilder::receive(int peer, uint32_t tag, const Region& into,
                              std::vector<uint32_t> after) {
  if (into.bytes == 0) return kNoStep;
  return add({StepKind::kReceive, peer, tag, {}, into, std::move(after)});
}

void PlanBuilder::copy(const Region& from, const Region& to) {
  if (from.bytes > 0) add({StepKind::kCopy, -1, 0, {from}, to, {}});
}

uint32_t PlanBuilder::reduce(ReduceStage stage, std::vector<Region> sources, const Region& to,
                             std::vector<uint32_t> after) {
  return add({StepKind::kReduce, -1, 0, std::move(sources), to, std::move(after), stage});
}

void PlanBuilder::signal(int peer) { add({StepKind::kSend, peer, 0, {Region{}}, {}, {}}); }

void PlanBuilder::await_signal(int peer) { add({StepKind::kReceive, peer, 0, {}, {}, {}}); }

Region PlanBuilder::scratch(size_t bytes) {
  const Region region{BufferKind::kScratch, 0, plan_.scratch_bytes, bytes};
  plan_.scratch_bytes += (bytes + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return region;
}

uint32_t PlanBuilder::add(Step step) {
  plan_.steps.push_back(std::move(step));
  return static_cast<uint32_t>(plan_.steps.size() - 1);
}

}  // namespace smdist
