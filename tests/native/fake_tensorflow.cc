// SPDX-License-Identifier: Apache-2.0
#include "fake_tensorflow.h"

#include <atomic>
#include <cstring>
#include <utility>

using smdist::fake_tensorflow::Attributes;
using smdist::fake_tensorflow::Outcome;
using smdist::fake_tensorflow::Tensor;

namespace {

std::atomic<int64_t> pieces{0};

struct Piece {
  void* data;
  size_t bytes;
  void (*drop)(void* data, size_t bytes, void* argument);
  void* argument;

  Piece(void* of, size_t size, void (*dropper)(void*, size_t, void*), void* with)
      : data(of), bytes(size), drop(dropper), argument(with) {
    ++pieces;
  }
  ~Piece() {
    drop(data, bytes, argument);
    --pieces;
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
};

void free_bytes(void* data, size_t, void*) { ::operator delete(data); }

}  // namespace

struct TF_Tensor {
  TF_DataType type;
  std::vector<int64_t> shape;
  std::shared_ptr<Piece> piece;
};

struct TSL_Status {
  TF_Code code = TF_OK;
  std::string text;
};

struct TF_OpKernelContext {
  std::vector<const TF_Tensor*> inputs;
  std::vector<TF_DataType> types;
  Outcome outcome;
};

struct TF_OpKernelConstruction {
  const Attributes& attributes;
  Outcome outcome;
};

// Attributes that a test does not name have TensorFlow's default: "" and 0.
static std::string text_of(const Attributes& attributes, const std::string& name) {
  const auto found = attributes.texts.find(name);
  return found == attributes.texts.end() ? "" : found->second;
}

static int32_t number_of(const Attributes& attributes, const std::string& name) {
  const auto found = attributes.numbers.find(name);
  return found == attributes.numbers.end() ? 0 : found->second;
}

struct TF_KernelBuilder {
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
  void (*drop)(void*);
};

namespace {

std::map<std::string, std::unique_ptr<TF_KernelBuilder>>& kernels() {
  static std::map<std::string, std::unique_ptr<TF_KernelBuilder>> of_process;
  return of_process;
}

}  // namespace

extern "C" {

TF_Status* TF_NewStatus() { return new TF_Status; }
void TF_DeleteStatus(TF_Status* status) { delete status; }
void TF_SetStatus(TF_Status* status, TF_Code code, const char* text) { *status = {code, text}; }
TF_Code TF_GetCode(const TF_Status* status) { return status->code; }
const char* TF_Message(const TF_Status* status) { return status->text.c_str(); }

size_t TF_DataTypeSize(TF_DataType type) {
  if (type == TF_STRING) return 0;
  return type == TF_INT64 ? sizeof(int64_t) : sizeof(float);
}

TF_Tensor* TF_NewTensor(TF_DataType type, const int64_t* shape, int dimensions, void* data,
                        size_t bytes, void (*drop)(void*, size_t, void*), void* argument) {
  return new TF_Tensor{
      type, {shape, shape + dimensions}, std::make_shared<Piece>(data, bytes, drop, argument)};
}
TF_Tensor* TF_AllocateTensor(TF_DataType type, const int64_t* shape, int dimensions, size_t bytes) {
  return TF_NewTensor(type, shape, dimensions, ::operator new(bytes), bytes, &free_bytes, nullptr);
}
void TF_DeleteTensor(TF_Tensor* tensor) { delete tensor; }
TF_DataType TF_TensorType(const TF_Tensor* tensor) { return tensor->type; }
int TF_NumDims(const TF_Tensor* tensor) { return static_cast<int>(tensor->shape.size()); }
int64_t TF_Dim(const TF_Tensor* tensor, int i) { return tensor->shape[static_cast<size_t>(i)]; }
size_t TF_TensorByteSize(const TF_Tensor* tensor) { return tensor->piece->bytes; }
void* TF_TensorData(const TF_Tensor* tensor) { return tensor->piece->data; }
int64_t TF_TensorElementCount(const TF_Tensor* tensor) {
  return static_cast<int64_t>(tensor->piece->bytes / TF_DataTypeSize(tensor->type));
}

int TF_NumInputs(TF_OpKernelContext* context) { return static_cast<int>(context->inputs.size()); }
int TF_NumOutputs(TF_OpKernelContext* context) { return static_cast<int>(context->types.size()); }
TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext* context, int i) {
  return context->types[static_cast<size_t>(i)];
}
void TF_GetInput(TF_OpKernelContext* context, int i, TF_Tensor** tensor, TF_Status*) {
  *tensor = new TF_Tensor(*context->inputs[static_cast<size_t>(i)]);
}
void TF_SetOutput(TF_OpKernelContext* context, int i, const TF_Tensor* tensor, TF_Status*) {
  context->outcome.outputs[static_cast<size_t>(i)].reset(new TF_Tensor(*tensor));
}
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status) {
  context->outcome.code = status->code;
  context->outcome.text = status->text;
}

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* context, TF_Status* status) {
  context->outcome.code = status->code;
  context->outcome.text = status->text;
}
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction* context, const char*,
                                          float* value, TF_Status*) {
  *value = context->attributes.scale;
}
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction* context, const char* name,
                                          int32_t* value, TF_Status*) {
  *value = number_of(context->attributes, name);
}
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction* context, const char* name,
                                         TF_DataType* value, TF_Status*) {
  *value = static_cast<TF_DataType>(context->attributes.numbers.at(name));
}
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* context, const char* name,
                                           char* text, size_t most, TF_Status*) {
  std::strncpy(text, text_of(context->attributes, name).c_str(), most);
}

TF_KernelBuilder* TF_NewKernelBuilder(const char*, const char*,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*),
                                      void (*drop)(void*)) {
  return new TF_KernelBuilder{create, compute, drop};
}
TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char*, const char*, void* (*create)(TF_OpKernelConstruction*),
    void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*drop)(void*)) {
  return new TF_KernelBuilder{create, nullptr, drop};
}
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*) {}
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder* builder, TF_Status*) {
  kernels()[name].reset(builder);
}

}  // extern "C"

namespace smdist::fake_tensorflow {

Tensor floats(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  const size_t bytes = values.size() * sizeof(float);
  Tensor tensor(TF_AllocateTensor(TF_FLOAT, shape.data(), static_cast<int>(shape.size()), bytes));
  if (bytes > 0) std::memcpy(TF_TensorData(tensor.get()), values.data(), bytes);
  return tensor;
}

Tensor integers(const std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const size_t bytes = values.size() * sizeof(int64_t);
  Tensor tensor(TF_AllocateTensor(TF_INT64, &count, 1, bytes));
  if (bytes > 0) std::memcpy(TF_TensorData(tensor.get()), values.data(), bytes);
  return tensor;
}

std::vector<float> values_of(const Tensor& tensor) {
  const auto* const first = static_cast<const float*>(TF_TensorData(tensor.get()));
  return {first, first + TF_TensorElementCount(tensor.get())};
}

int64_t live_pieces() { return pieces; }

Kernel::Kernel(const std::string& op, const Attributes& attributes) : builder_(*kernels().at(op)) {
  TF_OpKernelConstruction context{attributes, {}};
  if (builder_.create != nullptr) kernel_ = builder_.create(&context);
  made_ = std::move(context.outcome);
}

Kernel::~Kernel() {
  if (builder_.drop != nullptr) builder_.drop(kernel_);
}

Outcome Kernel::run(const std::vector<const Tensor*>& inputs,
                    const std::vector<TF_DataType>& outputs) const {
  TF_OpKernelContext context{{}, outputs, {}};
  for (const Tensor* const input : inputs) context.inputs.push_back(input->get());
  context.outcome.outputs.resize(outputs.size());
  builder_.compute(kernel_, &context);
  return std::move(context.outcome);
}

}  // namespace smdist::fake_tensorflow
