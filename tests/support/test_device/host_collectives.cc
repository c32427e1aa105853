// SPDX-License-Identifier: Apache-2.0
// The Python module of the stand-in for NCCL. It knows the device by torch's interfaces and by the
// operators with which tests hold streams.
#include "host_collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace test_device {
namespace {

using Tensors = HostCollectives::Tensors;
using Guard = c10::impl::VirtualGuardImpl;

std::shared_ptr<c10::Event> recorded(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

int64_t hold_current_stream() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("testdev::hold_stream", "").typed<int64_t()>();
  return op.call();
}

void open_stream(int64_t number) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("testdev::open_stream", "")
                             .typed<void(int64_t)>();
  op.call(number);
}

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

void combine(const at::Tensor& sum, const at::Tensor& value, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(value);
      return;
    case c10d::ReduceOp::MIN:
      sum.copy_(at::minimum(sum, value));
      return;
    case c10d::ReduceOp::MAX:
      sum.copy_(at::maximum(sum, value));
      return;
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PREMUL_SUM:
      sum.add_(value);
      return;
    default:
      TORCH_CHECK(false, "host_collectives: no reduce operation ", static_cast<int>(op.op_));
  }
}

// The factor of each input.
double factor_of(const c10d::ReduceOp& op, int size) {
  if (op.op_ == c10d::ReduceOp::AVG) return 1.0 / size;
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 1;
  return static_cast<c10d::PreMulSumSupplement*>(op.supplement_.get())->double_factor;
}

// Completes when its event does.
class HostWork final : public c10d::Work {
 public:
  HostWork(int rank, const char* title, std::shared_ptr<c10::Event> event, c10::Device device,
           Tensors held)
      : Work(rank, c10d::OpType::UNKNOWN, title),
        event_(std::move(event)),
        device_(device),
        held_(std::move(held)) {}

  bool isCompleted() override { return event_->query(); }
  void synchronize() override {
    event_->block(Guard(device_.type()).getStream(device_));
    held_.clear();  // as NCCL's backend does
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }

 private:
  const std::shared_ptr<c10::Event> event_;
  const c10::Device device_;
  Tensors held_;
};

}  // namespace

HostCollectives::HostCollectives(const std::string& path, int rank, int size, int priority)
    : Backend(rank, size),
      memory_(path, rank, size),
      priority_(priority),
      thread_([this] { exchange_all(); }) {}

HostCollectives::~HostCollectives() { stop(); }

HostCollectives::WorkPtr HostCollectives::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return start("reduce_scatter", {output}, {input}, true, options.reduceOp);
}

HostCollectives::WorkPtr HostCollectives::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return start("reduce_scatter", outputs, inputs, true, options.reduceOp);
}

HostCollectives::WorkPtr HostCollectives::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions&) {
  return start("all_gather", {output}, {input}, false, {});
}

HostCollectives::WorkPtr HostCollectives::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  return start("all_gather", outputs, inputs, false, {});
}

HostCollectives::WorkPtr HostCollectives::start(const char* title, Tensors outputs, Tensors inputs,
                                                bool reduces, const c10d::ReduceOp& op) {
  ++num_operations_;
  TORCH_CHECK(fails_in_ == 0 || --fails_in_ > 0, "host_collectives: injected fault in ", title);
  TORCH_CHECK(!is_aborted_, "host_collectives: the communicator was aborted");
  const c10::Device device = inputs[0].device();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& longer = reduces ? inputs[i] : outputs[i];
    const at::Tensor& shorter = reduces ? outputs[i] : inputs[i];
    TORCH_CHECK(longer.numel() == shorter.numel() * size_ && inputs[i].is_contiguous() &&
                    outputs[i].is_contiguous() && inputs[i].device() == device &&
                    outputs[i].device() == device,
                "host_collectives: wrong tensors in ", title);
  }
  if (!stream_) stream_ = Guard(device.type()).getNewStream(device, priority_);
  const c10::InferenceMode no_autograd;
  const std::shared_ptr<c10::Event> ready = recorded(Guard(device.type()).getStream(device));
  const c10::StreamGuard guard(*stream_);
  ready->block(*stream_);
  std::shared_ptr<c10::Event> done;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Exchange next{pinned_like(inputs[i]), pinned_like(outputs[i]), nullptr, 0, reduces, op};
    next.input.copy_(inputs[i], /*non_blocking=*/true);
    next.on_host = recorded(*stream_);
    next.held_stream = hold_current_stream();
    outputs[i].copy_(next.output, /*non_blocking=*/true);
    done = recorded(*stream_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      exchanges_.push_back(std::move(next));
    }
    changed_.notify_all();
  }
  inputs.insert(inputs.end(), outputs.begin(), outputs.end());
  return c10::make_intrusive<HostWork>(rank_, title, done, device, std::move(inputs));
}

void HostCollectives::exchange_all() {
  while (true) {
    std::optional<Exchange> next;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_stopped_ || !exchanges_.empty(); });
      if (exchanges_.empty()) return;
      next = std::move(exchanges_.front());
      exchanges_.pop_front();
    }
    await_permission();
    exchange(*next);
    open_stream(next->held_stream);
  }
}

void HostCollectives::await_permission() {
  Pauses pauses;
  while (exchanges_left_ == 0 && !is_aborted_) pauses.pause();
  if (exchanges_left_ > 0) --exchanges_left_;
}

void HostCollectives::exchange(const Exchange& next) {
  const c10::InferenceMode no_autograd;
  Pauses pauses;
  while (!next.on_host->query()) {
    if (is_aborted_) return;
    pauses.pause();
  }
  const int64_t share = next.reduces ? next.output.numel() : next.input.numel();
  const double factor = next.reduces ? factor_of(next.op, size_) : 1;
  bool is_first = true;
  memory_.exchange(next.input.data_ptr(), next.input.nbytes(), [&](int rank, const char* buffer) {
    const auto part = static_cast<size_t>(next.reduces ? rank_ : 0) * share;
    const size_t bytes = next.input.element_size();
    at::Tensor value = at::from_blob(const_cast<char*>(buffer) + part * bytes, {share},
                                     next.input.options().pinned_memory(false));
    if (factor != 1) value = value * factor;
    if (!next.reduces) {
      next.output.narrow(0, rank * share, share).copy_(value);
    } else if (std::exchange(is_first, false)) {
      next.output.copy_(value);
    } else {
      combine(next.output, value, next.op);
    }
  });
}

void HostCollectives::abort() {
  is_aborted_ = true;
  memory_.abort();
}

void HostCollectives::shutdown() { stop(); }

void HostCollectives::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace test_device

namespace py = pybind11;

PYBIND11_MODULE(host_collectives, module) {
  using test_device::HostCollectives;
  module.def("create",
             [](const std::string& path, int rank, int size,
                bool has_high_priority) -> c10::intrusive_ptr<c10d::Backend> {
               return c10::make_intrusive<HostCollectives>(path, rank, size,
                                                           has_high_priority ? -1 : 0);
             });
  module.def("fail_operation", [](const c10::intrusive_ptr<c10d::Backend>& backend, int number) {
    dynamic_cast<HostCollectives&>(*backend).fail_operation(number);
  });
  module.def("limit_exchanges", [](const c10::intrusive_ptr<c10d::Backend>& backend, int number) {
    dynamic_cast<HostCollectives&>(*backend).limit_exchanges(number);
  });
  module.def("num_operations", [](const c10::intrusive_ptr<c10d::Backend>& backend) {
    return dynamic_cast<HostCollectives&>(*backend).num_operations();
  });
}
