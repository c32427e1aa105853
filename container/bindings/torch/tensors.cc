// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/MemoryOverlap.h>

#include <utility>

namespace smdist::torch_binding {

WireType wire_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return {Dtype::kFloat32, true};
    case at::kDouble:
      return {Dtype::kFloat64, true};
    case at::kHalf:
      return {Dtype::kFloat16, true};
    case at::kBFloat16:
      return {Dtype::kBfloat16, true};
    case at::kChar:
      return {Dtype::kInt8, true};
    case at::kByte:
      return {Dtype::kUint8, true};
    case at::kShort:
      return {Dtype::kInt16, true};
    case at::kInt:
      return {Dtype::kInt32, true};
    case at::kLong:
      return {Dtype::kInt64, true};
    case at::kBool:
      return {Dtype::kBool, true};
    default:  // torch's enum grows with its releases
      return {Dtype::kUint8, false};
  }
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum, 1};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAverage, 1};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct, 1};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin, 1};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax, 1};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBand, 1};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBor, 1};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBxor, 1};
    case c10d::ReduceOp::PREMUL_SUM: {
      // The name that releases of torch before 2.13 have, too.
      const auto* factor = static_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      const bool is_tensor = factor->tensor_factor.defined();
      return {ReduceOp::kSum,
              is_tensor ? factor->tensor_factor.item<double>() : factor->double_factor};
    }
    case c10d::ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK_VALUE(false, "smdist has no reduce operation with torch's number ",
                    static_cast<int>(op.op_),
                    ". Pass SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR of ReduceOp.");
}

void check_tensors(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(
        tensor.layout() == at::kStrided, "the tensor has the layout ", tensor.layout(),
        ", but this operation takes dense tensors only. Call to_dense() on it first.");
  }
}

c10::Device device_of(const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& outputs) {
  const std::vector<at::Tensor>& known = inputs.empty() ? outputs : inputs;
  const c10::Device first = known.empty() ? c10::Device(c10::kCPU) : known[0].device();
  TORCH_CHECK_VALUE(first.is_cpu() || at::isAccelerator(first.type()), "the tensor is on ", first,
                    ", from which smdist cannot copy. Move it to the CPU or to a GPU.");
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_VALUE(tensor.device() == first, "one call got a tensor on ", first,
                        " and another one on ", tensor.device(),
                        ", but all tensors of a call must be on one device. Move them to ", first,
                        ".");
    }
  }
  return first;
}

void check_outputs(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(
        at::has_internal_overlap(output) != at::MemOverlap::Yes,
        "several elements of the output share the same memory, as after expand(), so it "
        "cannot hold the result. Call contiguous() on it first.");
  }
}

void check_arithmetic(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(wire_of(tensor.scalar_type()).has_arithmetic, "the tensor has dtype ",
                    tensor.scalar_type(),
                    ", which smdist cannot reduce. Convert it to float32 first.");
}

Span span_of(const at::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

std::vector<Span> CheckedSpans::of(const std::vector<at::Tensor>& tensors) {
  constexpr uintptr_t kAlignment = 64;  // a multiple of every dtype's size
  std::vector<Span> spans;
  spans.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_contiguous()) {
      spans.push_back(span_of(tensor));
      continue;
    }
    spans.push_back({reinterpret_cast<void*>(next_), tensor.nbytes()});
    next_ += (tensor.nbytes() / kAlignment + 1) * kAlignment;
  }
  return spans;
}

StagedTensors::StagedTensors(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  contiguous_.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) contiguous_.push_back(tensor.contiguous());
}

std::vector<Span> StagedTensors::spans() const {
  std::vector<Span> spans;
  spans.reserve(contiguous_.size());
  for (const at::Tensor& tensor : contiguous_) spans.push_back(span_of(tensor));
  return spans;
}

bool StagedTensors::is_copied() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_same(contiguous_[i])) return true;
  }
  return false;
}

void StagedTensors::copy_back() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].is_same(contiguous_[i])) tensors_[i].detach().copy_(contiguous_[i]);
  }
}

}  // namespace smdist::torch_binding
