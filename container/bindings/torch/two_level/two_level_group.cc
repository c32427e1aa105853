// SPDX-License-Identifier: Apache-2.0
#include "two_level_group.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "../staging/copy_streams.h"
#include "../work.h"
#include "smdist/errors.h"

namespace smdist::torch_binding {
namespace {

using std::chrono::milliseconds;
using EventPtr = CopyStreams::EventPtr;
using Guard = c10::impl::VirtualGuardImpl;
using Clock = std::chrono::steady_clock;

// Time between two checks whether all-gathers have run, or the engine has failed.
constexpr milliseconds kCheckInterval{5};
// Time for which a device may end its work after a failure, before the host lets streams go on.
constexpr std::chrono::seconds kFailurePatience{2};
// Time for which stop() lets all-gathers run that were queued.
constexpr std::chrono::seconds kPatience{30};

constexpr const char* kStopped = "the process group was destroyed, so it cannot start an operation";

// Returns a stream that is not among those of default priority, which callbacks of Futures get.
c10::Stream new_stream(c10::Device device) {
  return Guard(device.type()).getNewStream(device, /*priority=*/-1);
}

// Pauses longer, up to a millisecond, the longer the wait has lasted.
void pause(Clock::time_point begin) {
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  std::this_thread::sleep_for(
      std::clamp(waited / 16, std::chrono::microseconds(10), std::chrono::microseconds(1000)));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown exception";
  }
}

// Returns a hash of what must be the same on all ranks of a host.
uint64_t layout_of(const DeviceCall& call) {
  const at::Tensor& tensor = call.outputs[0];
  uint64_t hash = 0;
  for (const uint64_t each :
       {static_cast<uint64_t>(call.kind), static_cast<uint64_t>(tensor.scalar_type()),
        static_cast<uint64_t>(call.reduction.op), static_cast<uint64_t>(bytes_of(call))}) {
    hash = hash * 0x9E3779B97F4A7C15 + each + 1;
  }
  return hash;
}

std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> unzip(
    const std::vector<LevelBuffers::Pair>& pairs) {
  std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> unzipped;
  for (const LevelBuffers::Pair& pair : pairs) {
    unzipped.first.push_back(pair.input);
    unzipped.second.push_back(pair.output);
  }
  return unzipped;
}

// All groups of this process, for its end.
struct KnownGroups {
  std::mutex mutex;
  std::vector<TwoLevelGroup*> groups;  // guarded by mutex
};

// Never destroyed: groups may be destroyed after other objects.
KnownGroups& known_groups() {
  static auto* const known = new KnownGroups;
  return *known;
}

}  // namespace

TwoLevelGroup::TwoLevelGroup(std::shared_ptr<Engine> engine, LevelGroups groups)
    : engine_(std::move(engine)),
      groups_(std::move(groups)),
      staging_stream_(new_stream(groups_.device)),
      result_stream_(new_stream(groups_.device)),
      process_(getpid()) {
  callbacks_.start();
  exchanging_ = std::thread([this] { exchange_all(); });
  gathering_ = std::thread([this] { gather_all(); });
  pthread_setname_np(exchanging_.native_handle(), "smdist-exchange");
  pthread_setname_np(gathering_.native_handle(), "smdist-gather");
  const std::lock_guard<std::mutex> lock(known_groups().mutex);
  known_groups().groups.push_back(this);
}

// Keeps the threads for ever in a forked child, where they do not exist, and also what has threads.
TwoLevelGroup::~TwoLevelGroup() {
  if (getpid() != process_) {
    new std::thread(std::move(exchanging_));
    new std::thread(std::move(gathering_));
    new LevelGroups(groups_);
    return;
  }
  stop();
  const std::lock_guard<std::mutex> lock(known_groups().mutex);
  std::erase(known_groups().groups, this);
}

void TwoLevelGroup::start(const DeviceCall& call, const c10::intrusive_ptr<TwoLevelWork>& work,
                          std::function<void()> ended) {
  if (is_stopped_) throw UsageError(kStopped);
  if (const std::exception_ptr failure = engine_->failure()) {
    context().awaited->take_error();  // drops the late error, which has the same cause
    std::rethrow_exception(failure);
  }
  const c10::InferenceMode no_autograd;  // the only mode in which every tensor may be written
  const c10::Stream current = current_stream(groups_.device);
  std::vector<LevelBuffers> pieces = level_buffers_of(call, groups_.layout, groups_.piece_bytes);
  announce(call);
  work->set_sequence(sequence_++);
  for (LevelBuffers& buffers : pieces) {
    auto operation = std::make_unique<Pending>();
    operation->call = call;
    operation->ops = *level_ops_of(call);
    operation->buffers = std::move(buffers);
    operation->work = work;
    if (&buffers == &pieces.back()) operation->ended = std::move(ended);
    record_uses(operation->buffers);
    if (!operation->buffers.reduce_scatters.empty()) reduce_within_host(*operation);
    operation->ready = record_event(current);
    if (!to_exchange_.push(std::move(operation))) throw UsageError(kStopped);
  }
}

void TwoLevelGroup::record_uses(const LevelBuffers& buffers) const {
  for (const auto* pairs : {&buffers.all_gathers, &buffers.copies_back}) {
    for (const LevelBuffers::Pair& pair : *pairs) {
      record_use(pair.input, result_stream_);
      record_use(pair.output, result_stream_);
    }
  }
}

// Starts the all-reduce by which the engine notices what is wrong among the ranks of this host.
void TwoLevelGroup::announce(const DeviceCall& call) {
  auto word = std::make_shared<uint64_t>(0);
  smdist::Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.dtype = Dtype::kUint8;
  operation.op = ReduceOp::kMax;
  operation.layout = layout_of(call);
  operation.inputs = operation.outputs = {{word.get(), sizeof(*word)}};
  operation.timeout = call.timeout;
  // A disagreement ends this operation alone, and the ranks of the other hosts learn nothing of it.
  operation.done = [word,
                    engine = std::weak_ptr<Engine>(engine_)](const std::exception_ptr& error) {
    const std::shared_ptr<Engine> alive = error ? engine.lock() : nullptr;
    if (alive && !alive->failure()) alive->abort(text_of(error));
  };
  engine_->submit(groups_.host_group, std::move(operation));
}

void TwoLevelGroup::reduce_within_host(Pending& operation) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = operation.ops.within_host;
  auto [inputs, outputs] = unzip(operation.buffers.reduce_scatters);
  c10d::Backend& host = *groups_.host_reduce;
  try {
    operation.reduced = inputs.size() == 1
                            ? host._reduce_scatter_base(outputs[0], inputs[0], options)
                            : host.reduce_scatter_tensor_coalesced(outputs, inputs, options);
  } catch (...) {
    std::rethrow_exception(fail(std::current_exception()));
  }
}

void TwoLevelGroup::exchange_all() {
  while (auto next = to_exchange_.pop()) {
    PendingPtr operation = std::move(*next);
    try {
      await_device(*operation);
      if (operation->buffers.between_hosts) exchange_between_hosts(*operation);
    } catch (...) {
      operation->error = fail(std::current_exception());
    }
    to_gather_.push(std::move(operation));
  }
  to_gather_.close();
}

// Waits until the first level has run, or the caller's work if there is no first level.
void TwoLevelGroup::await_device(const Pending& operation) const {
  const auto begin = Clock::now();
  const c10::intrusive_ptr<c10d::Work>& reduced = operation.reduced;
  while (!(reduced ? reduced->isCompleted() : operation.ready->query())) {
    if (const std::exception_ptr failure = engine_->failure()) std::rethrow_exception(failure);
    if (!engine_->is_running()) {
      throw Error("the process group was shut down before this operation was complete");
    }
    pause(begin);
  }
  if (reduced && reduced->exception()) std::rethrow_exception(reduced->exception());
}

void TwoLevelGroup::exchange_between_hosts(Pending& operation) {
  const c10::StreamGuard guard(staging_stream_);
  LevelBuffers::Pair& pair = *operation.buffers.between_hosts;
  c10d::Backend& hosts = *groups_.between_hosts;
  const milliseconds timeout = operation.call.timeout;
  if (operation.call.kind == Collective::kAllGather) {
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    operation.exchanged = hosts._allgather_base(pair.output, pair.input, options);
  } else if (operation.call.kind == Collective::kReduceScatter) {
    c10d::ReduceScatterOptions options;
    options.timeout = timeout;
    options.reduceOp = operation.ops.between_hosts;
    operation.exchanged = hosts._reduce_scatter_base(pair.output, pair.input, options);
  } else {
    c10d::AllreduceOptions options;
    options.timeout = timeout;
    options.reduceOp = operation.ops.between_hosts;
    std::vector<at::Tensor> shares{pair.output};
    operation.exchanged = hosts.allreduce(shares, options);
  }
}

void TwoLevelGroup::gather_all() {
  std::optional<Clock::time_point> last_check;
  while (true) {
    auto next = has_open_ends() ? to_gather_.pop_within(kCheckInterval) : to_gather_.pop();
    check_gathers();
    release_streams();
    if (next) {
      PendingPtr operation = std::move(*next);
      EventPtr on_device;
      try {
        if (operation->error) std::rethrow_exception(operation->error);
        gather_within_host(*operation);
        on_device = gathers_.back().on_device;
      } catch (...) {
        operation->error = fail(std::current_exception());
      }
      end(std::move(operation), on_device);
    } else if (to_gather_.is_finished()) {
      if (!last_check) last_check = Clock::now() + kPatience;
      if (Clock::now() > *last_check) abort_within_host();
      if (!has_open_ends() || Clock::now() > *last_check) break;
    }
  }
  for (const Gather& gather : gathers_) {  // the device will not set them
    if (gather.signal) gather.signal->set();
  }
  for (const Failed& failed : failed_) failed.work->signal()->set();
}

// Queues the last level on the stream of results, and the signal behind it.
void TwoLevelGroup::gather_within_host(Pending& operation) {
  const c10::StreamGuard guard(result_stream_);
  const c10::InferenceMode no_autograd;
  Gather gather;
  if (operation.reduced) operation.reduced->synchronize();
  if (operation.exchanged) operation.exchanged->wait();
  if (!operation.buffers.all_gathers.empty()) {
    auto [inputs, outputs] = unzip(operation.buffers.all_gathers);
    c10d::Backend& host = *groups_.host_gather;
    gather.gathered = inputs.size() == 1 ? host._allgather_base(outputs[0], inputs[0])
                                         : host.allgather_into_tensor_coalesced(outputs, inputs);
    gather.gathered->synchronize();
  }
  for (const LevelBuffers::Pair& copy : operation.buffers.copies_back) {
    copy.output.copy_(copy.input, /*non_blocking=*/true);
  }
  gather.signal = operation.work->queue_signal();
  gather.on_device = record_event(result_stream_);
  gathers_.push_back(std::move(gather));
}

bool TwoLevelGroup::has_run(const Gather& gather) const {
  if (gather.gathered && !gather.gathered->isCompleted()) return false;
  if (gather.gathered && gather.gathered->exception()) {
    std::rethrow_exception(gather.gathered->exception());
  }
  return gather.on_device->query() && (!gather.signal || gather.signal->is_set());
}

// Forgets the all-gathers that have run, and ends the others if the engine has failed. A signal
// that the host sets is not used again, because its stream may set it later.
void TwoLevelGroup::check_gathers() {
  if (engine_->failure()) abort_within_host();
  if (engine_->failure() && !failed_at_) failed_at_ = Clock::now();
  while (!gathers_.empty()) {
    const Gather& gather = gathers_.front();
    try {
      if (has_run(gather)) {
        if (gather.signal) context().signals->give_back(*gather.signal);
      } else if (failed_at_ && Clock::now() > *failed_at_ + kFailurePatience) {
        if (gather.signal) gather.signal->set();
      } else {
        return;
      }
    } catch (...) {
      fail(std::current_exception());
      if (gather.signal) gather.signal->set();
    }
    gathers_.pop_front();
  }
}

// Lets the streams go on that wait for a Work that has failed, once the caller's work before its
// call is complete, which may itself wait for an earlier one.
void TwoLevelGroup::release_streams() {
  std::erase_if(failed_, [this](const Failed& failed) {
    try {
      if (!failed.ready->query()) return false;
      gathers_.push_back({nullptr, failed.work->release_streams(true), failed.work->signal()});
    } catch (...) {
      failed.work->signal()->set();  // the device cannot
    }
    return true;
  });
}

void TwoLevelGroup::end(PendingPtr operation, const EventPtr& on_device) {
  if (operation->ended) operation->ended();
  const bool is_complete = operation->work->complete_part(operation->error, on_device);
  if (is_complete && operation->work->has_failed() && operation->work->signal()) {
    failed_.push_back({operation->work, operation->ready});
  }
  smdist::Operation called;
  called.done = [is_complete,
                 held = std::shared_ptr<Pending>(std::move(operation))](const std::exception_ptr&) {
    if (is_complete) held->work->complete_futures();
  };
  callbacks_.push(called, nullptr);
}

std::exception_ptr TwoLevelGroup::fail(const std::exception_ptr& cause) {
  const std::string reason = "a collective within the host of rank " +
                             std::to_string(engine_->rank()) + " failed on " +
                             groups_.device.str() + ": " + text_of(cause);
  if (!engine_->failure()) engine_->abort(reason);
  abort_within_host();
  const std::exception_ptr failure = engine_->failure();
  return failure ? failure : std::make_exception_ptr(Error(reason));
}

void TwoLevelGroup::abort_within_host() {
  std::call_once(aborted_, [this] {
    groups_.host_reduce->abort();
    groups_.host_gather->abort();
  });
}

// Releases the GIL, for which the threads may wait when they destroy tensors.
void TwoLevelGroup::stop() {
  std::optional<pybind11::gil_scoped_release> release;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release.emplace();
  is_stopped_ = true;
  std::call_once(stopped_, [this] {
    to_exchange_.close();
    exchanging_.join();
    gathering_.join();
    callbacks_.finish();
    if (groups_.between_hosts) groups_.between_hosts->shutdown();
    try {
      engine_->remove_group(groups_.host_group);
    } catch (const UsageError&) {
      // An announcement is pending.
    }
    std::call_once(aborted_, [this] {  // communicators that were aborted need no more
      groups_.host_reduce->shutdown();
      groups_.host_gather->shutdown();
    });
  });
}

void stop_all_two_level_groups() {
  std::vector<TwoLevelGroup*> groups;
  {
    const std::lock_guard<std::mutex> lock(known_groups().mutex);
    groups = known_groups().groups;
  }
  for (TwoLevelGroup* const group : groups) group->stop();
}

}  // namespace smdist::torch_binding
