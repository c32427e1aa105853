// SPDX-License-Identifier: Apache-2.0
// Tests that no rank completes its plan before all ranks have posted the operation, and that plans
// still move their data.
#include "collectives/agreement.h"

#include <algorithm>
#include <functional>
#include <set>

#include "check.h"
#include "engine/algorithm_choice.h"
#include "plan_game.h"

namespace smdist {
namespace {

using testing::Buffers;
using testing::Bytes;
using testing::contribution;
using testing::Game;
using testing::part;
using testing::Player;
using testing::sum_of_all;

constexpr Collective kRooted[] = {Collective::kBroadcast, Collective::kScatter, Collective::kGather,
                                  Collective::kReduce};
constexpr Collective kOthers[] = {Collective::kAllReduce, Collective::kAllGather,
                                  Collective::kReduceScatter, Collective::kAllToAll,
                                  Collective::kBarrier};
constexpr int kLarge = kMaxSignallingRanks + 2;
constexpr int kSizes[] = {1, 2, 3, 5, kMaxSignallingRanks, kLarge};
constexpr size_t kLengths[] = {0, 700, 70'001};  // of one rank's part

// A collective whose elements are single bytes.
struct Call {
  Collective kind;
  int size;
  int root;
  size_t bytes;
  int ranks_per_host;
};

Buffers inputs_of(const Call& call, int rank) {
  const size_t all = call.bytes * static_cast<size_t>(call.size);
  switch (call.kind) {
    case Collective::kBroadcast:
      return rank == call.root ? Buffers{contribution(rank, call.bytes)} : Buffers{};
    case Collective::kScatter:
      return rank == call.root ? Buffers{contribution(rank, all)} : Buffers{};
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return {contribution(rank, all)};
    case Collective::kBarrier:
      return {};
    default:
      return {contribution(rank, call.bytes)};
  }
}

Buffers outputs_of(const Call& call, int rank) {
  const size_t all = call.bytes * static_cast<size_t>(call.size);
  switch (call.kind) {
    case Collective::kGather:
      return rank == call.root ? Buffers{Bytes(all)} : Buffers{};
    case Collective::kReduce:
      return rank == call.root ? Buffers{Bytes(call.bytes)} : Buffers{};
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return {Bytes(all)};
    case Collective::kBarrier:
      return {};
    default:
      return {Bytes(call.bytes)};
  }
}

std::vector<Span> spans_of(Buffers& buffers) {
  std::vector<Span> spans;
  for (Bytes& each : buffers) spans.push_back({each.data(), each.size()});
  return spans;
}

Player player_of(const Call& call, int rank) {
  std::vector<int> members;
  std::vector<int> hosts;
  for (int each = 0; each < call.size; ++each) {
    members.push_back(each);
    hosts.push_back(each / call.ranks_per_host);
  }
  const Group group(0, members, rank, HostTopology(hosts), false, 2);
  Player player;
  player.inputs = inputs_of(call, rank);
  player.outputs = outputs_of(call, rank);
  Operation operation;
  operation.kind = call.kind;
  operation.dtype = Dtype::kUint8;
  operation.root = call.root;
  operation.inputs = spans_of(player.inputs);
  operation.outputs = spans_of(player.outputs);
  Tuning tuning;
  tuning.chunk_bytes = 4096;
  const Descriptor descriptor = descriptor_of(operation, rank, call.size);
  player.plan = plan_of(operation, group, choose(descriptor, tuning, group, 0));
  return player;
}

Game game_of(const Call& call) {
  std::vector<Player> players;
  for (int rank = 0; rank < call.size; ++rank) players.push_back(player_of(call, rank));
  return Game(std::move(players), static_cast<uint32_t>(call.size), 1);
}

void for_calls(const std::function<void(const Call&)>& visit) {
  for (const int size : kSizes) {
    for (const size_t bytes : kLengths) {
      for (const int ranks_per_host : {kLarge, 2}) {
        for (const Collective kind : kRooted) {
          visit({kind, size, size / 2, bytes, ranks_per_host});
        }
      }
    }
  }
}

void check_result(const Call& call, int rank, const Buffers& outputs) {
  const size_t bytes = call.bytes;
  const auto size = static_cast<size_t>(call.size);
  const bool is_root = rank == call.root;
  switch (call.kind) {
    case Collective::kBroadcast:
      CHECK(outputs[0] == contribution(call.root, bytes));
      return;
    case Collective::kScatter:
      CHECK(outputs[0] ==
            part(contribution(call.root, bytes * size), static_cast<size_t>(rank), bytes));
      return;
    case Collective::kGather:
      for (int each = 0; is_root && each < call.size; ++each) {
        CHECK(part(outputs[0], static_cast<size_t>(each), bytes) == contribution(each, bytes));
      }
      return;
    case Collective::kReduce:
      if (is_root) CHECK(outputs[0] == sum_of_all(call.size, bytes));
      return;
    default:
      return;
  }
}

void rooted_collectives_move_their_data() {
  for_calls([](const Call& call) {
    const std::vector<Player> players = game_of(call).play();
    for (int rank = 0; rank < call.size; ++rank) {
      check_result(call, rank, players[static_cast<size_t>(rank)].outputs);
    }
  });
}

void check_that_all_wait_for(int absent, const Call& call) {
  const std::vector<Player> players = game_of(call).play(absent);
  for (int rank = 0; rank < call.size; ++rank) {
    if (rank == absent) continue;
    const std::vector<bool>& is_done = players[static_cast<size_t>(rank)].is_done;
    CHECK(std::find(is_done.begin(), is_done.end(), false) != is_done.end());
  }
}

void no_rank_is_done_while_one_is_absent() {
  for_calls([](const Call& call) {
    const int step = call.size < 6 ? 1 : 5;
    for (int absent = 0; absent < call.size; absent += step) check_that_all_wait_for(absent, call);
    if (call.size > 1) check_that_all_wait_for(call.root, call);
  });
}

// Collectives without a root wait for all ranks, also if a call has no data for which to wait.
void collectives_of_all_ranks_wait_for_all_too() {
  for (const Collective kind : kOthers) {
    for (const size_t bytes : kLengths) {
      if (kind == Collective::kBarrier && bytes > 0) continue;
      for (const int ranks_per_host : {6, 2, 1}) {
        for (int absent = 0; absent < 6; ++absent) {
          check_that_all_wait_for(absent, {kind, 6, 0, bytes, ranks_per_host});
        }
      }
    }
  }
}

std::set<int> partners_of(const Call& call, int rank) {
  std::set<int> partners;
  for (const Step& step : player_of(call, rank).plan.steps) {
    if (step.peer >= 0) partners.insert(step.peer);
  }
  return partners;
}

// Frames for the agreement grow with the number of ranks only at the root.
void members_of_a_large_group_exchange_signals_with_the_root() {
  for (const Collective kind : kRooted) {
    const Call call{kind, kLarge, 1, 700, 1};
    CHECK_EQ(static_cast<size_t>(kLarge - 1), partners_of(call, call.root).size());
    for (int rank = 0; rank < kLarge; ++rank) {
      if (rank != call.root) CHECK(partners_of(call, rank) == std::set<int>{call.root});
    }
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(rooted_collectives_move_their_data);
  RUN(no_rank_is_done_while_one_is_absent);
  RUN(collectives_of_all_ranks_wait_for_all_too);
  RUN(members_of_a_large_group_exchange_signals_with_the_root);
}
