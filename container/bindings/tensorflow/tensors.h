// SPDX-License-Identifier: Apache-2.0
// TensorFlow's tensors as the core sees them: memory, a dtype, and what they are called.
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
// Shared, since the engine holds what it reads.
using TensorPtr = std::shared_ptr<TF_Tensor>;

TensorPtr input_of(TF_OpKernelContext* context, int index);
Shape shape_of(const TF_Tensor* tensor);
Span span_of(const TF_Tensor* tensor);
std::vector<int64_t> integers_of(const TF_Tensor* tensor);

// How a tensor travels. Tensors that are only moved may have any dtype of a fixed size;
// those the core has no arithmetic for travel as bytes.
struct Wire {
  Dtype dtype;
  bool has_arithmetic;
};
Wire wire_of(TF_DataType type);

// Bytes of elements; throws UsageError for a dtype without a fixed size, as strings.
size_t width_of(TF_DataType type);
int64_t elements_of(const Shape& shape);
std::string text_of(const Shape& shape);  // as "[2, 3]"

// A number that differs, as good as surely, where dtypes or shapes do.
uint64_t layout_of(TF_DataType type, const std::vector<Shape>& shapes);

}  // namespace smdist::tensorflow_binding
