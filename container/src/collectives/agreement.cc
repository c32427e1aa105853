// SPDX-License-Identifier: Apache-2.0
#include "collectives/agreement.h"

#include <utility>
#include <vector>

#include "collectives/sharding.h"

namespace smdist {
namespace {

// Tags that no other message has.
constexpr uint32_t kSignalTag = UINT32_MAX;
constexpr uint32_t kTokenTag = UINT32_MAX - 1;

uint32_t add(Plan& plan, Step step) {
  plan.steps.push_back(std::move(step));
  return static_cast<uint32_t>(plan.steps.size() - 1);
}

// Adds an empty message in both directions. Returns the step that receives the peer's signal.
uint32_t exchange_signals(Plan& plan, int peer) {
  add(plan, {StepKind::kSend, peer, kSignalTag, {Region{}}, {}, {}});
  return add(plan, {StepKind::kReceive, peer, kSignalTag, {}, {}, {}});
}

// Reserves one byte of scratch memory for the token.
Region add_token(Plan& plan) {
  const Region token{BufferKind::kScratch, 0, plan.scratch_bytes, 1};
  plan.scratch_bytes += kShardAlignment;
  return token;
}

// Adds the root's side: its data, or tokens, wait for one step that waits for all signals. This
// step writes the token, of which only the arrival has a meaning.
void gate_sends_of_root(Plan& plan, int root, int size, bool sends_to_all) {
  const auto num_steps = static_cast<uint32_t>(plan.steps.size());
  std::vector<uint32_t> signals;
  for (int step = 1; step < size; ++step) {
    signals.push_back(exchange_signals(plan, (root + step) % size));
  }
  const Region token = add_token(plan);
  const Region input{BufferKind::kInput, 0, 0, token.bytes};
  const uint32_t gate = add(plan, {StepKind::kCopy, -1, 0, {input}, token, std::move(signals)});
  if (!sends_to_all) {
    for (int step = 1; step < size; ++step) {
      add(plan, {StepKind::kSend, (root + step) % size, kTokenTag, {token}, {}, {gate}});
    }
    return;
  }
  for (uint32_t i = 0; i < num_steps; ++i) {
    if (plan.steps[i].kind == StepKind::kSend) plan.steps[i].after.push_back(gate);
  }
}

}  // namespace

void await_all_ranks(Plan& plan, int rank, int size) {
  std::vector<bool> is_partner(static_cast<size_t>(size));
  is_partner[static_cast<size_t>(rank)] = true;
  for (const Step& step : plan.steps) {
    if (step.peer >= 0) is_partner[static_cast<size_t>(step.peer)] = true;
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    if (!is_partner[static_cast<size_t>(peer)]) exchange_signals(plan, peer);
  }
}

void await_all_ranks_at_root(Plan& plan, int rank, int size, int root, bool receives_from_root) {
  if (rank == root) return gate_sends_of_root(plan, root, size, receives_from_root);
  exchange_signals(plan, root);
  if (!receives_from_root) {
    add(plan, {StepKind::kReceive, root, kTokenTag, {}, add_token(plan), {}});
  }
}

}  // namespace smdist
