// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "async_operation.h"
#include "smdist/errors.h"

namespace smdist::tensorflow_binding {
namespace {

constexpr size_t kLongestText = 512;  // bytes of a string attribute, and a zero

struct AllReduceAttributes {
  ReduceOp op;
  double scale;
  SubmissionAttributes submission;
};

AllReduceAttributes all_reduce_attributes(TF_OpKernelConstruction* context) {
  const Status status;
  float scale = 1;
  TF_OpKernelConstruction_GetAttrFloat(context, "scale", &scale, status.get());
  status.check();
  return {reduce_op_attribute(context), scale, submission_attributes(context)};
}

// Returns the locations of the tensors in a buffer that contains them one after another.
std::vector<Part> parts_of(const std::vector<TensorPtr>& values) {
  std::vector<Part> parts;
  size_t offset = 0;
  for (const TensorPtr& value : values) {
    const size_t bytes = TF_TensorByteSize(value.get());
    parts.push_back({shape_of(value.get()), offset, bytes});
    offset += padded(bytes);
  }
  return parts;
}

size_t bytes_of(const std::vector<Part>& parts) {
  return parts.empty() ? 0 : parts.back().offset + parts.back().bytes;
}

// Copies the tensors to a buffer. The gaps between them are summed, too, so they are set to zero.
void pack(const std::vector<TensorPtr>& values, const std::vector<Part>& parts, uint8_t* to) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.bytes == 0) continue;
    std::memcpy(to + part.offset, TF_TensorData(values[i].get()), part.bytes);
    const size_t end = part.offset + part.bytes;
    if (i + 1 < parts.size()) std::memset(to + end, 0, parts[i + 1].offset - end);
  }
}

std::vector<TensorPtr> inputs_of(TF_OpKernelContext* context) {
  std::vector<TensorPtr> inputs;
  for (int i = 0; i < TF_NumInputs(context); ++i) inputs.push_back(input_of(context, i));
  return inputs;
}

// Starts an all_reduce. A single tensor is read in place; several are packed into the result
// buffer.
void start_all_reduce(const AllReduceAttributes& attributes, TF_OpKernelContext* context) {
  const EngineContext current = current_engine();
  std::vector<TensorPtr> values = inputs_of(context);
  const TF_DataType type = TF_TensorType(values[0].get());
  std::vector<Part> parts = parts_of(values);
  std::vector<Shape> shapes;
  for (const Part& part : parts) shapes.push_back(part.shape);
  const size_t bytes = bytes_of(parts);
  auto buffer = std::make_shared<PooledBuffer>(bytes);
  Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.dtype = wire_of(type).dtype;
  operation.op = attributes.op;
  operation.scale = attributes.scale;
  operation.layout = layout_of(type, shapes);
  operation.outputs = {{buffer->data(), bytes}};
  if (values.size() == 1) {
    operation.inputs = {span_of(values[0].get())};
  } else {
    pack(values, parts, buffer->data());
    operation.inputs = operation.outputs;
    values.clear();
  }
  submit(context, current, std::move(operation), {type, std::move(parts), std::move(buffer)},
         std::move(values), attributes.submission);
}

void drop_buffer(void*, size_t, void* held) { delete static_cast<BufferPtr*>(held); }

// Returns a part of the buffer as a tensor, without a copy. The tensor keeps the buffer alive.
TensorPtr tensor_of(const Results& results, const Part& part) {
  const int dimensions = static_cast<int>(part.shape.size());
  if (part.bytes == 0) {
    return {TF_AllocateTensor(results.type, part.shape.data(), dimensions, 0), DeleteTensor{}};
  }
  return {TF_NewTensor(results.type, part.shape.data(), dimensions,
                       results.buffer->data() + part.offset, part.bytes, &drop_buffer,
                       new BufferPtr(results.buffer)),
          DeleteTensor{}};
}

void check_outputs(TF_OpKernelContext* context, const Results& results) {
  const auto expected = static_cast<size_t>(TF_NumOutputs(context));
  const bool agrees = expected == results.parts.size() &&
                      (expected == 0 || TF_ExpectedOutputDataType(context, 0) == results.type);
  if (agrees) return;
  throw UsageError("the start op has " + std::to_string(results.parts.size()) +
                   " results of dtype number " + std::to_string(results.type) +
                   ", and the wait op has " + std::to_string(expected) +
                   " results. The number or the dtype of the results differs."
                   " Pass the same T and N to both ops.");
}

int64_t handle_of(TF_OpKernelContext* context) {
  const std::vector<int64_t> handles = integers_of(input_of(context, 0).get());
  if (handles.size() == 1) return handles[0];
  throw UsageError("a handle is a tensor of 1 element, but the tensor has " +
                   std::to_string(handles.size()) +
                   " elements. Pass the tensor that the start op returned.");
}

void set_outputs(TF_OpKernelContext* context, const Results& results) {
  const Status status;
  for (size_t i = 0; i < results.parts.size(); ++i) {
    const TensorPtr tensor = tensor_of(results, results.parts[i]);
    TF_SetOutput(context, static_cast<int>(i), tensor.get(), status.get());
    status.check();
  }
}

void wait(TF_OpKernelContext* context) {
  const AsyncOperationPtr pending = take(handle_of(context));
  check_outputs(context, pending->results());
  pending->wait();
  set_outputs(context, pending->results());
}

// TensorFlow's callback of an asynchronous kernel. The C API passes its address, but the callback
// is a parameter of the function that calls the kernel, so it ends when the kernel returns.
// Therefore the kernel copies it. TensorFlow 2.16 to 2.21 call it by the same type:
// tensorflow/c/kernels.cc.
using DoneCallback = std::function<void()>;

// Sets the outputs of the op after the operation has ended, on the engine's thread for callbacks.
void await_results(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  AsyncOperationPtr pending;
  run_kernel(context, [&] {
    const AsyncOperationPtr taken = take(handle_of(context));
    check_outputs(context, taken->results());
    pending = taken;
  });
  if (!pending) return TF_RunAsyncOpKernelDoneCallback(done);
  pending->then([pending, context, copy = *reinterpret_cast<DoneCallback*>(done)]() mutable {
    run_kernel(context, [&] {
      pending->wait();
      set_outputs(context, pending->results());
    });
    TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy));
  });
}

// A kernel that reads its attributes once, by `read`, and passes them to `body` on every run.
template <typename Options, Options (*read)(TF_OpKernelConstruction*),
          void (*body)(const Options&, TF_OpKernelContext*)>
struct KernelWithAttributes {
  static void* create(TF_OpKernelConstruction* context) {
    Status status;
    try {
      return new Options(read(context));
    } catch (...) {
      set_from_exception(status);
    }
    TF_OpKernelConstruction_Failure(context, status.get());
    return nullptr;
  }
  static void compute(void* options, TF_OpKernelContext* context) {
    run_kernel(context, [&] { body(*static_cast<Options*>(options), context); });
  }
  static void drop(void* options) { delete static_cast<Options*>(options); }

  static TF_KernelBuilder* builder(const char* op) {
    return TF_NewKernelBuilder(op, "CPU", &create, &compute, &drop);
  }
};

void wait_kernel(void*, TF_OpKernelContext* context) {
  run_kernel(context, [&] { wait(context); });
}

void send_kernel(void*, TF_OpKernelContext* context) {
  run_kernel(context, [&] { start_send(context); });
}

void add(const char* name, TF_KernelBuilder* builder) {
  const Status status;
  TF_RegisterKernelBuilder(name, builder, status.get());  // takes ownership of the builder
  status.check();
}

}  // namespace

std::string text_attribute(TF_OpKernelConstruction* context, const char* name) {
  const Status status;
  std::array<char, kLongestText> text{};
  TF_OpKernelConstruction_GetAttrString(context, name, text.data(), text.size() - 1, status.get());
  status.check();
  return text.data();
}

ReduceOp reduce_op_attribute(TF_OpKernelConstruction* context) {
  const std::string name = text_attribute(context, "op");
  for (uint8_t value = 0; value < kReduceOps; ++value) {
    const auto op = static_cast<ReduceOp>(value);
    if (name == name_of(op)) return op;
  }
  throw UsageError("'" + name + "' is not a reduce operation");
}

SubmissionAttributes submission_attributes(TF_OpKernelConstruction* context) {
  const Status status;
  int32_t group = 0;
  TF_OpKernelConstruction_GetAttrInt32(context, "group", &group, status.get());
  status.check();
  if (group < 0) throw UsageError("group is " + std::to_string(group) + ", which is below 0");
  return {static_cast<uint32_t>(group), text_attribute(context, "key"),
          text_attribute(context, "label")};
}

void register_kernels() {
  using Start =
      KernelWithAttributes<AllReduceAttributes, &all_reduce_attributes, &start_all_reduce>;
  using StartRowCollective =
      KernelWithAttributes<RowCollectiveAttributes, &row_collective_attributes,
                           &start_row_collective>;
  add("SmdistStart", Start::builder("SmdistStart"));
  add("SmdistMove", StartRowCollective::builder("SmdistMove"));
  add("SmdistSend", TF_NewKernelBuilder("SmdistSend", "CPU", nullptr, &send_kernel, nullptr));
  using StartReceive = KernelWithAttributes<TF_DataType, &received_type, &start_receive>;
  add("SmdistReceive", StartReceive::builder("SmdistReceive"));
  add("SmdistAwait",
      TF_NewAsyncKernelBuilder("SmdistAwait", "CPU", nullptr, &await_results, nullptr));
  for (const char* const op : {"SmdistWait", "SmdistMoved"}) {
    add(op, TF_NewKernelBuilder(op, "CPU", nullptr, &wait_kernel, nullptr));
  }
}

}  // namespace smdist::tensorflow_binding
