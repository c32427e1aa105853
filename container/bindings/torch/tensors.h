// SPDX-License-Identifier: Apache-2.0
// Torch's tensors as the core sees them: memory and dtype, and the checks of both.
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "smdist/operation.h"

namespace smdist::torch_binding {

// Dtype of a tensor on the wire. Tensors that are only moved may have any dtype; a dtype for
// which the core has no arithmetic is sent as bytes.
struct WireType {
  Dtype dtype;
  bool has_arithmetic;
};
WireType wire_of(at::ScalarType type);

// A reduce operation with the factor of PREMUL_SUM, else 1.
struct Reduction {
  ReduceOp op;
  double scale;
};
Reduction reduction_of(const c10d::ReduceOp& op);

// Raises ValueError for tensors that are sparse, or not on the CPU.
void check_tensors(const std::vector<at::Tensor>& tensors);

// Raises ValueError for outputs whose elements share memory.
void check_outputs(const std::vector<at::Tensor>& outputs);

// Raises ValueError if the core cannot do arithmetic on the tensor's dtype.
void check_arithmetic(const at::Tensor& tensor);

// The tensor's memory. Requires: contiguous.
Span span_of(const at::Tensor& tensor);

// Contiguous versions of tensors, and the copy back to the originals.
//
// A contiguous tensor is used directly. copy_back() writes results to the other ones.
//
// Thread safety: none.
class StagedTensors {
 public:
  explicit StagedTensors(std::vector<at::Tensor> tensors);

  const std::vector<at::Tensor>& contiguous() const { return contiguous_; }
  std::vector<Span> spans() const;
  bool is_copied() const;  // some tensor is not contiguous
  void copy_back() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> contiguous_;
};

}  // namespace smdist::torch_binding
