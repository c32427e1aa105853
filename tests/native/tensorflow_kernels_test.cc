// SPDX-License-Identifier: Apache-2.0
// Tests of the kernels of the TensorFlow ops, called by many threads as TensorFlow does.
#include <atomic>
#include <thread>

#include "../../container/bindings/tensorflow/async_operation.h"
#include "../../container/bindings/tensorflow/kernels.h"
#include "../../container/bindings/tensorflow/process_engine.h"
#include "check.h"
#include "cluster.h"
#include "fake_tensorflow.h"

namespace smdist::tensorflow_binding {
namespace {

using fake_tensorflow::Attributes;
using fake_tensorflow::floats;
using fake_tensorflow::integers;
using fake_tensorflow::Kernel;
using fake_tensorflow::live_pieces;
using fake_tensorflow::Outcome;
using fake_tensorflow::Tensor;
using fake_tensorflow::values_of;
using testing::Cluster;
using testing::Result;
using testing::text_of;
using Floats = std::vector<float>;

constexpr int kThreads = 4;
const Attributes kSum{{{"op", "sum"}}, {{"group", 0}}};

Attributes row_collective_of(const std::string& kind, int root = 0) {
  return {{{"kind", kind}, {"op", "sum"}}, {{"root", root}}};
}

// A cluster whose first rank the kernels use. Its destructor checks that nothing is left.
class World final {
 public:
  explicit World(int size) : cluster_(size) {
    adopt({&cluster_[0], [](Engine*) {}}, std::chrono::seconds(20));
  }
  ~World() {
    release();
    for (int rank = 0; rank < cluster_.size(); ++rank) cluster_.end(rank);
    CHECK_EQ(int64_t{0}, live_pieces());
    CHECK_EQ(int64_t{0}, live_buffers());
    CHECK_EQ(int64_t{0}, open_handles());
    CHECK_EQ(int64_t{0}, under_way());
  }
  Engine& mine() { return cluster_[0]; }
  Engine& other() { return cluster_[1]; }

 private:
  Cluster cluster_;
};

struct Sum {
  Kernel starts{"SmdistStart", kSum};
  Kernel waits{"SmdistWait"};

  Outcome start(const std::vector<const Tensor*>& values) const {
    return starts.run(values, {TF_INT64});
  }
  Outcome wait(const Tensor& handle, size_t count = 1) const {
    return waits.run({&handle}, std::vector<TF_DataType>(count, TF_FLOAT));
  }
};

void run_at_once(const std::function<void()>& task) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(task);
  for (std::thread& thread : threads) thread.join();
}

// Submits the other rank's part of a sum of tensors of this shape.
Result sum_at(Engine& other, Floats& values, const Shape& shape) {
  Operation operation = testing::sum_of(values);
  operation.layout = layout_of(TF_FLOAT, {shape});
  return testing::start(other, 0, std::move(operation));
}

void sums_come_to_their_own_thread() {
  World world(1);
  const Sum sum;
  std::atomic<int> next{1};
  run_at_once([&] {
    for (int i = 0; i < 300; ++i) {
      const auto number = static_cast<float>(next++);
      const Tensor one = floats({number, 2}, {2});
      const Tensor none = floats({}, {0, 3});
      const Outcome started = sum.start({&one, &none, &one});
      CHECK_EQ(+TF_OK, +started.code);
      const Outcome ended = sum.wait(started.outputs[0], 3);
      CHECK_EQ(+TF_OK, +ended.code);
      CHECK(values_of(ended.outputs[0]) == (Floats{number, 2}));
      CHECK(values_of(ended.outputs[1]).empty());
      CHECK(values_of(ended.outputs[2]) == (Floats{number, 2}));
      const auto place = reinterpret_cast<uintptr_t>(TF_TensorData(ended.outputs[2].get()));
      CHECK_EQ(uintptr_t{0}, place % kAlignment);
    }
  });
}

void tensors_may_go_before_their_operation_has_ended() {
  World world(2);
  const Sum sum;
  Floats theirs(100, 1);
  {
    const Tensor mine = floats(theirs, {100});
    (void)sum.start({&mine});  // the handle is dropped at once
  }
  CHECK_EQ(int64_t{1}, under_way());
  CHECK_EQ(int64_t{0}, open_handles());
  CHECK_EQ(int64_t{1}, live_pieces());  // the engine still has to read it
  Result result = sum_at(world.other(), theirs, {100});
  CHECK(text_of(result).empty());
  CHECK_EQ(2.0f, theirs[99]);
}

void waits_end_when_the_engine_does(const std::function<void(World&)>& end, TF_Code code) {
  World world(2);
  const Sum sum;
  std::atomic<int> waiting{0};
  std::thread ender([&] {
    while (waiting < kThreads) std::this_thread::yield();
    end(world);
  });
  run_at_once([&] {
    const Tensor one = floats({1}, {1});
    const Outcome started = sum.start({&one});
    ++waiting;
    const Outcome ended = sum.wait(started.outputs[0]);
    CHECK_EQ(+code, +ended.code);
    CHECK(!ended.outputs[0]);
  });
  ender.join();
}

void waits_end_with_every_end_of_the_engine() {
  waits_end_when_the_engine_does([](World& world) { world.mine().abort("enough"); }, TF_ABORTED);
  waits_end_when_the_engine_does([](World& world) { world.mine().shutdown(); }, TF_ABORTED);
  waits_end_when_the_engine_does([](World& world) { world.other().shutdown(); }, TF_ABORTED);
}

void starts_meet_the_end_of_the_engine() {
  for (int round = 0; round < 20; ++round) {
    World world(1);
    const Sum sum;
    std::atomic<int> started{0};
    std::thread ender([&] {
      while (started < 20) std::this_thread::yield();
      world.mine().shutdown();
      release();
    });
    run_at_once([&] {
      const Tensor one = floats({1}, {1});
      while (true) {
        const Outcome outcome = sum.start({&one});
        if (outcome.code == TF_FAILED_PRECONDITION) return;
        if (outcome.code != TF_OK) CHECK_CONTAINS("shut down", outcome.text);
        if (outcome.code != TF_OK) continue;
        ++started;
        const TF_Code code = sum.wait(outcome.outputs[0]).code;
        CHECK(code == TF_OK || code == TF_ABORTED);
      }
    });
    ender.join();
  }
}

void expect_refusal(const Outcome& outcome, const std::string& text) {
  CHECK_EQ(+TF_INVALID_ARGUMENT, +outcome.code);
  CHECK_CONTAINS(text, outcome.text);
}

void refused_calls_leave_nothing() {
  World world(1);
  const Sum sum;
  const Tensor one = floats({1}, {1});
  expect_refusal(Kernel("SmdistStart", {{{"op", "median"}}, {{"group", 0}}}).made(), "median");
  expect_refusal(sum.wait(integers({77})), "Wait for each handle once");
  expect_refusal(sum.wait(integers({})), "a handle is a tensor of 1 element");
  const Outcome started = sum.start({&one});
  expect_refusal(sum.wait(started.outputs[0], 2), "Pass the same T and N to both ops");
  expect_refusal(sum.wait(started.outputs[0]), "Wait for each handle once");
}

void moves_of_impossible_sizes_are_refused() {
  World world(1);
  const Tensor rows = floats({1, 2, 3, 4}, {2, 2});
  const Tensor none = integers({});
  const auto run = [&](const Attributes& attributes, const Tensor& sent, const Tensor& received) {
    return Kernel("SmdistMove", attributes).run({&rows, &sent, &received}, {TF_INT64});
  };
  const Tensor two = integers({2});
  const Tensor huge = integers({int64_t{1} << 61});  // the byte count would overflow to 0
  expect_refusal(run(row_collective_of("broadcast", 7), none, none), "the root is rank 7");
  expect_refusal(run(row_collective_of("broadcast", -1), none, none), "the root is rank -1");
  expect_refusal(run(row_collective_of("all_to_all"), two, huge), "more rows than fit in memory");
  expect_refusal(run(row_collective_of("all_to_all"), integers({3}), two), "sums up to 3");
  const Outcome started = run(row_collective_of("all_to_all"), two, two);
  CHECK_EQ(+TF_OK, +started.code);
  const Outcome moved = Kernel("SmdistMoved").run({&started.outputs[0]}, {TF_FLOAT});
  CHECK(values_of(moved.outputs[0]) == (Floats{1, 2, 3, 4}));
}

void messages_match_by_tag() {
  World world(2);
  const Tensor sent = floats({1, 2}, {2});
  const Tensor peer = integers({1});
  const Tensor shape = integers({3});
  const Outcome sending = Kernel("SmdistSend").run({&sent, &peer, &shape}, {TF_INT64});
  CHECK_EQ(+TF_OK, +sending.code);
  Floats theirs(2, 0);
  Operation receive;
  receive.kind = Collective::kReceive;
  receive.dtype = Dtype::kFloat32;
  receive.peer = 0;
  receive.tag = 3;
  receive.outputs = {{theirs.data(), theirs.size() * sizeof(float)}};
  Result received = testing::start(world.other(), 0, std::move(receive));
  CHECK(text_of(received).empty());
  CHECK(theirs == (Floats{1, 2}));
  const Outcome ended = Kernel("SmdistMoved").run({&sending.outputs[0]}, {TF_FLOAT});
  CHECK_EQ(+TF_OK, +ended.code);
  const Kernel receives("SmdistReceive", {{}, {{"T", TF_FLOAT}}});
  expect_refusal(receives.run({&shape, &shape, &peer}, {TF_INT64}), "the ranks are 0 to 1");
}

}  // namespace
}  // namespace smdist::tensorflow_binding

int main() {
  using namespace smdist::tensorflow_binding;
  register_kernels();
  RUN(sums_come_to_their_own_thread);
  RUN(tensors_may_go_before_their_operation_has_ended);
  RUN(waits_end_with_every_end_of_the_engine);
  RUN(starts_meet_the_end_of_the_engine);
  RUN(refused_calls_leave_nothing);
  RUN(moves_of_impossible_sizes_are_refused);
  RUN(messages_match_by_tag);
}
