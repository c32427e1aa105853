// SPDX-License-Identifier: Apache-2.0
// Conversion of torch's tensors for the core, and checks of their dtype and memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "smdist/operation.h"

namespace smdist::torch_binding {

// Dtype with which the core sends a tensor. Tensors that are not reduced may have any dtype; a
// dtype for which the core has no arithmetic is sent as bytes.
struct WireType {
  Dtype dtype;
  bool has_arithmetic;
};
WireType wire_of(at::ScalarType type);

// A reduce operation, and the factor of every input: that of PREMUL_SUM, else 1.
struct Reduction {
  ReduceOp op;
  double scale;
};
Reduction reduction_of(const c10d::ReduceOp& op);

// Raise ValueError for sparse tensors.
void check_tensors(const std::vector<at::Tensor>& tensors);

// Return the device of the tensors of a call, or the CPU if there are none. Raise ValueError if
// they are on different devices.
c10::Device device_of(const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& outputs);

// Raise ValueError for outputs whose elements share memory.
void check_outputs(const std::vector<at::Tensor>& outputs);

// Raise ValueError if the core cannot do arithmetic on the tensor's dtype.
void check_arithmetic(const at::Tensor& tensor);

// Return the tensor's memory. Requires: the tensor is contiguous.
Span span_of(const at::Tensor& tensor);

// Spans of tensors for checks alone, for which nothing is copied. A tensor that is not contiguous
// gets an address where there is no memory, which overlaps with nothing, as its copy would.
//
// Thread safety: none.
class CheckedSpans final {
 public:
  // Return the spans of tensors; call for the inputs and for the outputs of one operation.
  std::vector<Span> of(const std::vector<at::Tensor>& tensors);

 private:
  uintptr_t next_ = uintptr_t{1} << 62;  // beyond the addresses of all processors
};

// Contiguous versions of tensors: a contiguous tensor itself, or a contiguous copy. copy_back()
// copies results from the copies to the original tensors.
//
// Thread safety: none.
class StagedTensors {
 public:
  explicit StagedTensors(std::vector<at::Tensor> tensors);

  const std::vector<at::Tensor>& original() const { return tensors_; }
  const std::vector<at::Tensor>& contiguous() const { return contiguous_; }
  std::vector<Span> spans() const;
  // Return whether any tensor is not contiguous, so that there is a copy.
  bool is_copied() const;
  void copy_back() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> contiguous_;
};

}  // namespace smdist::torch_binding
