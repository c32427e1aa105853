// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another: a send and a receive match by sender, receiver and tag.
#include <limits>
#include <utility>

#include "async_operation.h"
#include "kernels.h"
#include "smdist/errors.h"

namespace smdist::tensorflow_binding {
namespace {

constexpr int kPeer = 1;  // index of the input in both ops
constexpr int kTag = 2;

int64_t scalar_of(TF_OpKernelContext* context, int index, const std::string& name) {
  const std::vector<int64_t> numbers = integers_of(input_of(context, index).get());
  if (numbers.size() == 1) return numbers[0];
  throw UsageError("`" + name + "` is one number, but the tensor has " +
                   std::to_string(numbers.size()) + " elements");
}

Operation message(Collective kind, TF_DataType type, TF_OpKernelContext* context,
                  const EngineContext& current) {
  const int64_t peer = scalar_of(context, kPeer, "peer");
  const int64_t tag = scalar_of(context, kTag, "tag");
  if (peer < 0 || peer >= current.engine->size()) {
    throw UsageError("`peer` is " + std::to_string(peer) + ", but the ranks are 0 to " +
                     std::to_string(current.engine->size() - 1));
  }
  if (tag < 0 || tag > std::numeric_limits<uint32_t>::max()) {
    throw UsageError("`tag` is " + std::to_string(tag) + ", which does not fit in 32 bits");
  }
  Operation operation;
  operation.kind = kind;
  operation.dtype = wire_of(type).dtype;
  operation.peer = static_cast<int>(peer);
  operation.tag = static_cast<uint32_t>(tag);
  return operation;
}

}  // namespace

void start_send(TF_OpKernelContext* context) {
  const EngineContext current = current_engine();
  const TensorPtr value = input_of(context, 0);
  const TF_DataType type = TF_TensorType(value.get());
  width_of(type);  // throws for a dtype without a fixed size
  Operation operation = message(Collective::kSend, type, context, current);
  operation.inputs = {span_of(value.get())};
  Results nothing{type, {{{0}, 0, 0}}, std::make_shared<PooledBuffer>(0)};
  submit(context, current, std::move(operation), std::move(nothing), {value});
}

TF_DataType received_type(TF_OpKernelConstruction* context) {
  const Status status;
  TF_DataType type = TF_FLOAT;
  TF_OpKernelConstruction_GetAttrType(context, "T", &type, status.get());
  status.check();
  return type;
}

void start_receive(const TF_DataType& type, TF_OpKernelContext* context) {
  const EngineContext current = current_engine();
  Shape shape = integers_of(input_of(context, 0).get());
  for (const int64_t length : shape) {
    if (length < 0) throw UsageError("`shape` has the negative length " + std::to_string(length));
  }
  const size_t bytes = static_cast<size_t>(elements_of(shape)) * width_of(type);
  auto buffer = std::make_shared<PooledBuffer>(bytes);
  Operation operation = message(Collective::kReceive, type, context, current);
  operation.outputs = {{buffer->data(), bytes}};
  submit(context, current, std::move(operation),
         {type, {{std::move(shape), 0, bytes}}, std::move(buffer)}, {});
}

}  // namespace smdist::tensorflow_binding
