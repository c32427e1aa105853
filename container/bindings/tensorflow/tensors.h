// SPDX-License-Identifier: Apache-2.0
// Conversion of TensorFlow's tensors for the core: memory, dtype and shape.
#pragma once

#include <tensorflow/c/kernels.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "smdist/operation.h"

namespace smdist::tensorflow_binding {

using Shape = std::vector<int64_t>;

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
// Shared, because the engine keeps the tensors that it reads alive.
using TensorPtr = std::shared_ptr<TF_Tensor>;

TensorPtr input_of(TF_OpKernelContext* context, int index);
Shape shape_of(const TF_Tensor* tensor);
Span span_of(const TF_Tensor* tensor);
std::vector<int64_t> integers_of(const TF_Tensor* tensor);

// Dtype with which the core sends a tensor. Tensors that are not reduced may have any dtype of a
// fixed size; a dtype for which the core has no arithmetic is sent as bytes.
struct WireType {
  Dtype dtype;
  bool has_arithmetic;
};
WireType wire_of(TF_DataType type);

// Return the bytes per element. Throws UsageError for a dtype without a fixed size, such as
// strings.
size_t width_of(TF_DataType type);
int64_t elements_of(const Shape& shape);
std::string text_of(const Shape& shape);  // such as "[2, 3]"

// Return a hash of dtype and shapes, by which ranks compare their calls.
uint64_t layout_of(TF_DataType type, const std::vector<Shape>& shapes);

}  // namespace smdist::tensorflow_binding
