// SPDX-License-Identifier: Apache-2.0
// Tensors as the core sees them: memory, a dtype, and what is refused.
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "smdist/operation.h"

namespace smdist::torch_binding {

// How a tensor travels. Tensors that are only moved may have any dtype; those
// the core has no arithmetic for travel as bytes.
struct Wire {
  Dtype dtype;
  bool has_arithmetic;
};
Wire wire_of(at::ScalarType type);

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

// Contiguous stand-ins for tensors, and the way back.
//
// A tensor that is contiguous is its own stand-in. copy_back() writes results
// into the tensors that were not.
class Staged {
 public:
  explicit Staged(std::vector<at::Tensor> tensors);

  const std::vector<at::Tensor>& contiguous() const { return contiguous_; }
  std::vector<Span> spans() const;
  bool is_copied() const;  // not all of them lie as they should
  void copy_back() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> contiguous_;
};

}  // namespace smdist::torch_binding
