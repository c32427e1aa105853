// SPDX-License-Identifier: Apache-2.0
#include "tuning/all_reduce_timer.h"

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

double AllReduceTimer::time(const Tuning& tuning, size_t bytes, size_t burst) {
  engine_.tune(tuning);
  std::vector<std::vector<float>> buffers(burst,
                                          Floats(std::max<size_t>(1, bytes / sizeof(float))));
  const double first = agreed(try_once(buffers));  // opens connections and touches new pages
  const int warm_ups = std::min(8, static_cast<int>(kWarmUpSeconds / first));
  const int tries = std::clamp(static_cast<int>(kTrySeconds / first), kLeastTries, kMostTries);
  for (int i = 0; i < warm_ups; ++i) sum(buffers);
  double best = try_once(buffers);
  for (int i = 1; i < tries; ++i) best = std::min(best, try_once(buffers));
  best = agreed(best);
  total_ += first + best * (warm_ups + tries);
  return best;
}

double AllReduceTimer::try_once(std::vector<Floats>& buffers) {
  const Clock::time_point begin = Clock::now();
  sum(buffers);
  return since(begin);
}

void AllReduceTimer::sum(std::vector<Floats>& buffers) {
  std::vector<Operation> operations;
  for (Floats& buffer : buffers) {
    const Span span{buffer.data(), buffer.size() * sizeof(float)};
    operations.push_back(reduction(Dtype::kFloat32, ReduceOp::kSum, span));
  }
  run(std::move(operations));
}

double AllReduceTimer::agreed(double seconds) {
  run({reduction(Dtype::kFloat64, ReduceOp::kMax, {&seconds, sizeof seconds})});
  return seconds;
}

// Runs the operations and blocks until their end. Waits for all of them even if one has failed,
// because they use memory of this object.
void AllReduceTimer::run(std::vector<Operation> operations) {
  Completion completion(operations.size());
  for (Operation& operation : operations) {
    operation.timeout = timeout_;
    operation.ended = [&completion](const std::exception_ptr& error) {
      completion.complete(error);
    };
  }
  if (operations.size() == 1) {
    engine_.submit_and_wait(group_, std::move(operations[0]), completion);
  } else {
    submit(std::move(operations), completion);
    engine_.wait(completion);
  }
  if (const std::exception_ptr error = completion.error()) std::rethrow_exception(error);
}

// Submits all operations; one that cannot be submitted counts as failed.
void AllReduceTimer::submit(std::vector<Operation> operations, Completion& completion) {
  for (Operation& operation : operations) {
    try {
      engine_.submit(group_, std::move(operation));
    } catch (...) {
      completion.complete(std::current_exception());
    }
  }
}

}  // namespace smdist
