// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of the progress engine: rank 0 of 3 posts operations of all kinds, while its two
// peers send frames over 1, 2 or 4 lanes each and change their counters in shared memory.
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/callback_executor.h"
#include "engine/progress_engine.h"
#include "fuzz_target.h"
#include "hostile_frames.h"
#include "hostile_transport.h"
#include "memory/arena_layout.h"
#include "posted_operations.h"

namespace smdist::fuzzing {
namespace {

constexpr int kRanks = 3;
constexpr int kMostCommands = 64;
constexpr int kCommandsAfterFailure = 6;

// Hosts of the ranks. Only ranks of one host share memory.
const std::vector<std::vector<int>>& placements() {
  static const std::vector<std::vector<int>> all{{0, 0, 0}, {0, 0, 1}, {0, 1, 1}, {0, 1, 2}};
  return all;
}

Options options_of(FuzzInput& input, uint32_t lanes) {
  Options options;
  options.size = kRanks;
  options.hosts = placements()[input.below(8) % placements().size()];
  options.fragment_bytes = 4 << 10;
  options.tuning.lanes = lanes;
  options.tuning.chunk_bytes = input.flag() ? 512 : 4096;
  options.tuning.one_shot_bytes = 64;
  options.tuning.single_owner_bytes = input.flag() ? 0 : 512;
  options.window = 2;
  options.eager_bytes = 128;
  options.block_bytes = 16 << 10;
  options.blocks_per_peer = 3;
  options.log = [](const std::string&) {};
  return options;
}

// Arena of a rank, which lives as long as the process: to clear all of it would take too long.
Span arena_of(int rank, const ArenaLayout& layout) {
  static std::array<std::vector<uint64_t>, kRanks> arenas;
  std::vector<uint64_t>& arena = arenas[static_cast<size_t>(rank)];
  const size_t bytes = (layout.bytes + 63) / 64 * 64;
  if (arena.size() * 8 < bytes) arena.resize(bytes / 8);
  const Span span{arena.data(), layout.bytes};
  for (size_t i = 0; i < layout.num_reduction_buffers; ++i) {
    const ReductionBuffer buffer = layout.reduction_buffer(span, i);
    buffer.summed().store(0);
    for (size_t member = 0; member < layout.shape.members; ++member) {
      buffer.given(member).store(0);
      buffer.taken(member).store(0);
    }
  }
  return span;
}

// A rank whose peers are hostile.
class EngineRun final {
 public:
  EngineRun(FuzzInput& input, uint32_t lanes)
      : lanes_(lanes),
        options_(options_of(input, lanes)),
        layout_(options_),
        transport_(kRanks, lanes, shared_arena(0), {Span{}, shared_arena(1), shared_arena(2)}),
        engine_(options_, transport_, callbacks_),
        operations_(options_, engine_) {
    transport_.start({}, &engine_);
    unsent_.resize(kRanks * lanes);
    const size_t connected = input.below(4);
    if (connected != 0) transport_.connect_peer(1);
    if (connected > 1) transport_.connect_peer(2);
  }

  void step(FuzzInput& input) {
    const size_t command = input.below(32);
    if (command < 6) return operations_.post(input);
    if (command < 14) return send_frame(input);
    if (command < 16) return send_honest_frames(input);
    if (command < 18) return send_again(input);
    if (command < 21) return send_rest(input);
    if (command < 24) return transport_.write(peer_of(input), lane_of(input), input.below(4));
    if (command < 27) return change_counter(input);
    if (command < 29) return engine_.advance_sums();
    if (command < 30) return engine_.check_deadlines();
    return rarely(input);
  }

  bool has_failed() const { return engine_.failure() != nullptr; }

  void finish() {
    engine_.leave();
    FUZZ_CHECK(operations_.have_all_ended());
    FUZZ_CHECK(engine_.is_quiet() || engine_.time_until_deadline().count() >= 0);
    for (int peer = 1; peer < kRanks; ++peer) {
      for (uint32_t lane = 0; lane < lanes_; ++lane) transport_.write(peer, lane, 64);
    }
    transport_.close({});
  }

 private:
  Span shared_arena(int rank) const {
    const bool is_here = options_.hosts[static_cast<size_t>(rank)] == options_.hosts[0];
    return is_here && layout_.ranks.size() > 1 ? arena_of(rank, layout_) : Span{};
  }
  static int peer_of(FuzzInput& input) { return 1 + static_cast<int>(input.below(2)); }
  uint32_t lane_of(FuzzInput& input) const {
    return lanes_ == 1 ? 0 : static_cast<uint32_t>(input.below(lanes_));
  }
  FrameBytes& unsent(int peer, uint32_t lane) {
    return unsent_[static_cast<size_t>(peer) * lanes_ + lane];
  }

  // Sends a frame, whole or only its first bytes. The lane first sends the rest of the frame
  // before.
  void send_frame(FuzzInput& input) {
    const int peer = peer_of(input);
    const FrameBytes frame = hostile_frame(input, peer, operations_);
    begin_frame(input, peer, lane_for(input, frame), frame);
  }
  // Sends the last frame of a peer once more, perhaps over another lane.
  void send_again(FuzzInput& input) {
    const int peer = peer_of(input);
    begin_frame(input, peer, lane_of(input), last_frames_[static_cast<size_t>(peer)]);
  }
  void begin_frame(FuzzInput& input, int peer, uint32_t lane, const FrameBytes& frame) {
    send(peer, lane, unsent(peer, lane).size());
    unsent(peer, lane) = last_frames_[static_cast<size_t>(peer)] = frame;
    const size_t choice = input.below(8);
    if (choice < 6 || frame.size() <= kHeaderBytes) return send(peer, lane, frame.size());
    send(peer, lane, cut(input, kHeaderBytes, frame.size()));
    if (choice < 7) return;
    send_twin(peer, lane, frame);
    if (input.flag()) send(peer, lane, unsent(peer, lane).size());
  }
  // Sends a frame that a lane has begun over another lane, too.
  void send_twin(int peer, uint32_t lane, const FrameBytes& frame) {
    const uint32_t other = (lane + 1) % lanes_;
    if (other == lane) return;
    send(peer, other, unsent(peer, other).size());
    transport_.deliver(peer, other, frame.data(), frame.size());
  }
  void send_honest_frames(FuzzInput& input) {
    const int peer = peer_of(input);
    for (const FrameBytes& frame : honest_frames(input, peer, operations_)) {
      begin_frame(input, peer, lane_for(input, frame), frame);
    }
  }
  // Returns a lane for a frame: any for data, lane 0 for most others.
  uint32_t lane_for(FuzzInput& input, const FrameBytes& frame) const {
    const uint32_t lane = lane_of(input);
    const bool is_data = frame[5] == static_cast<uint8_t>(FrameType::kData);
    return is_data || (lanes_ > 1 && input.below(16) == 15) ? lane : 0;
  }
  void send_rest(FuzzInput& input) {
    const int peer = peer_of(input);
    const uint32_t lane = lane_of(input);
    const size_t bytes = unsent(peer, lane).size();
    send(peer, lane, input.flag() ? bytes : cut(input, 0, bytes));
  }
  static size_t cut(FuzzInput& input, size_t from, size_t to) {
    return from + input.byte() * (to - from) / 256;
  }
  void send(int peer, uint32_t lane, size_t limit) {
    FrameBytes bytes;
    bytes.swap(unsent(peer, lane));
    const size_t now = std::min(limit, bytes.size());
    transport_.deliver(peer, lane, bytes.data(), now);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(now));
    unsent(peer, lane).swap(bytes);
  }

  void change_counter(FuzzInput& input) {
    const int peer = peer_of(input);
    const Span arena = transport_.arena_of(peer);
    const size_t number = input.below(8);
    const size_t which = input.below(16);
    const size_t step = input.below(64);
    if (arena.bytes == 0 || layout_.num_reduction_buffers == 0) return;
    const ReductionBuffer buffer =
        layout_.reduction_buffer(arena, number % layout_.num_reduction_buffers);
    const size_t member = which / 2 % layout_.shape.members;
    ReductionBuffer::Counter& counter = which >= 12      ? buffer.summed()
                                        : which % 2 == 0 ? buffer.given(member)
                                                         : buffer.taken(member);
    counter.store(step == 63 ? input.number<uint64_t>() : counter.load() + step % 8);
  }

  void rarely(FuzzInput& input) {
    const int peer = peer_of(input);
    switch (input.below(8)) {
      case 0:
        return transport_.lose_peer(peer, "closed its connection");
      case 1:
        return transport_.lose_lane(peer, lane_of(input), "closed its connection");
      case 2:
        return engine_.abort({FaultKind::kAborted, 0, "the user wants it", {}, {}});
      case 3:
        return engine_.forget_group(static_cast<uint32_t>(input.below(4)));
      case 4: {
        const std::vector<uint8_t> bytes = input.bytes(64);
        return transport_.deliver(peer, lane_of(input), bytes.data(), bytes.size());
      }
      default:
        transport_.connect_peer(peer);
        return transport_.flush_peer(peer);
    }
  }

  const uint32_t lanes_;
  const Options options_;
  const ArenaLayout layout_;
  HostileTransport transport_;
  CallbackExecutor callbacks_;
  ProgressEngine engine_;
  PostedOperations operations_;
  std::array<FrameBytes, kRanks> last_frames_;  // by peer
  std::vector<FrameBytes> unsent_;  // rest of the frame that a lane sends, by peer and lane
};

void run_engine(FuzzInput& input, uint32_t lanes) {
  EngineRun run(input, lanes);
  int after_failure = 0;
  for (int step = 0; step < kMostCommands && input.left() > 0; ++step) {
    run.step(input);
    if (run.has_failed() && ++after_failure == kCommandsAfterFailure) break;
  }
  run.finish();
}

FUZZ_TARGET(progress_engine_1_lane) { run_engine(input, 1); }
FUZZ_TARGET(progress_engine_2_lanes) { run_engine(input, 2); }
FUZZ_TARGET(progress_engine_4_lanes) { run_engine(input, 4); }

}  // namespace
}  // namespace smdist::fuzzing
