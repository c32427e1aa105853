// SPDX-License-Identifier: Apache-2.0
#include "tuning/stopwatch.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace smdist {
namespace {

constexpr double kWarmUpSeconds = 0.002;
constexpr double kTrySeconds = 0.003;
constexpr int kLeastTries = 3;
constexpr int kMostTries = 30;

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Operation reduction(Dtype dtype, ReduceOp op, Span span) {
  Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.dtype = dtype;
  operation.op = op;
  operation.inputs = operation.outputs = {span};
  return operation;
}

}  // namespace

double Stopwatch::time(const Tuning& tuning, size_t bytes, size_t burst) {
  engine_.tune(tuning);
  std::vector<std::vector<float>> buffers(burst,
                                          Floats(std::max<size_t>(1, bytes / sizeof(float))));
  const double first = agreed(try_once(buffers));  // connects, and wakes memory up
  const int warm_ups = std::min(8, static_cast<int>(kWarmUpSeconds / first));
  const int tries = std::clamp(static_cast<int>(kTrySeconds / first), kLeastTries, kMostTries);
  for (int i = 0; i < warm_ups; ++i) sum(buffers);
  double best = try_once(buffers);
  for (int i = 1; i < tries; ++i) best = std::min(best, try_once(buffers));
  best = agreed(best);
  total_ += first + best * (warm_ups + tries);
  return best;
}

double Stopwatch::try_once(std::vector<Floats>& buffers) {
  const Clock::time_point begin = Clock::now();
  sum(buffers);
  return since(begin);
}

void Stopwatch::sum(std::vector<Floats>& buffers) {
  std::vector<Operation> operations;
  for (Floats& buffer : buffers) {
    const Span span{buffer.data(), buffer.size() * sizeof(float)};
    operations.push_back(reduction(Dtype::kFloat32, ReduceOp::kSum, span));
  }
  run(std::move(operations));
}

double Stopwatch::agreed(double seconds) {
  run({reduction(Dtype::kFloat64, ReduceOp::kMax, {&seconds, sizeof seconds})});
  return seconds;
}

// As callers who wait do it. Waits for all of them, also if one has failed: their memory is ours.
void Stopwatch::run(std::vector<Operation> operations) {
  Ending ending(operations.size());
  for (Operation& operation : operations) {
    operation.timeout = patience_;
    operation.ended = [&ending](const std::exception_ptr& error) { ending.end(error); };
  }
  if (operations.size() == 1) {
    engine_.run(group_, std::move(operations[0]), ending);
  } else {
    submit(std::move(operations), ending);
    engine_.wait(ending);
  }
  if (const std::exception_ptr error = ending.error()) std::rethrow_exception(error);
}

// What cannot be submitted has ended.
void Stopwatch::submit(std::vector<Operation> operations, Ending& ending) {
  for (Operation& operation : operations) {
    try {
      engine_.submit(group_, std::move(operation));
    } catch (...) {
      ending.end(std::current_exception());
    }
  }
}

}  // namespace smdist
