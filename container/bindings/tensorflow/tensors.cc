// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include "smdist/errors.h"
#include "status.h"

namespace smdist::tensorflow_binding {
namespace {

// FNV-1a over the bytes of numbers.
class Hash final {
 public:
  void add(uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

TensorPtr input_of(TF_OpKernelContext* context, int index) {
  const Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status.get());
  status.check();
  return {tensor, DeleteTensor{}};
}

Shape shape_of(const TF_Tensor* tensor) {
  Shape shape(static_cast<size_t>(TF_NumDims(tensor)));
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = TF_Dim(tensor, static_cast<int>(i));
  return shape;
}

Span span_of(const TF_Tensor* tensor) { return {TF_TensorData(tensor), TF_TensorByteSize(tensor)}; }

std::vector<int64_t> integers_of(const TF_Tensor* tensor) {
  const auto* const first = static_cast<const int64_t*>(TF_TensorData(tensor));
  return {first, first + TF_TensorElementCount(tensor)};
}

WireType wire_of(TF_DataType type) {
  switch (type) {
    case TF_FLOAT:
      return {Dtype::kFloat32, true};
    case TF_DOUBLE:
      return {Dtype::kFloat64, true};
    case TF_HALF:
      return {Dtype::kFloat16, true};
    case TF_BFLOAT16:
      return {Dtype::kBfloat16, true};
    case TF_INT8:
      return {Dtype::kInt8, true};
    case TF_UINT8:
      return {Dtype::kUint8, true};
    case TF_INT16:
      return {Dtype::kInt16, true};
    case TF_INT32:
      return {Dtype::kInt32, true};
    case TF_INT64:
      return {Dtype::kInt64, true};
    case TF_BOOL:
      return {Dtype::kBool, true};
    default:  // TensorFlow's enum grows with its releases
      return {Dtype::kUint8, false};
  }
}

size_t width_of(TF_DataType type) {
  const size_t width = TF_DataTypeSize(type);
  if (width == 0) {
    throw UsageError(
        "the tensor's elements have no fixed size, like strings and variants, but smdist sends "
        "only "
        "numbers. Encode the tensor as numbers first.");
  }
  return width;
}

int64_t elements_of(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t dimension : shape) elements *= dimension;
  return elements;
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (const int64_t dimension : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  }
  return "[" + text + "]";
}

uint64_t layout_of(TF_DataType type, const std::vector<Shape>& shapes) {
  Hash hash;
  hash.add(static_cast<uint64_t>(type));
  for (const Shape& shape : shapes) {
    hash.add(shape.size());
    for (const int64_t dimension : shape) hash.add(static_cast<uint64_t>(dimension));
  }
  return hash.value();
}

}  // namespace smdist::tensorflow_binding
