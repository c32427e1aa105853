// SPDX-License-Identifier: Apache-2.0
// Definitions of the ops, and their registration when TensorFlow loads the library.
//
// Start ops are stateful: TensorFlow runs them in program order, which is the same on all ranks,
// and neither merges nor removes them. Wait ops are not stateful, since each would delay the next
// start op. SmdistAwait is a wait op that occupies no thread of TensorFlow, for
// graphs of sessions.
#include <tensorflow/c/ops.h>

#include <cstdio>
#include <initializer_list>

#include "kernels.h"

namespace smdist::tensorflow_binding {
namespace {

#define SMDIST_SUMMED "{bfloat16, half, float, double, int8, uint8, int16, int32, int64, bool}"

struct Description {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  std::initializer_list<const char*> attributes;
  bool is_stateful;
};

// The C API cannot read shapes from attributes, so the Python caller sets the known shapes.
void infer_unknown(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void infer_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const scalar = TF_ShapeInferenceContextScalar(context);
  TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
  TF_DeleteShapeHandle(scalar);
}

void add(const Description& op) {
  TF_OpDefinitionBuilder* const builder = TF_NewOpDefinitionBuilder(op.name);
  for (const char* each : op.attributes) TF_OpDefinitionBuilderAddAttr(builder, each);
  for (const char* each : op.inputs) TF_OpDefinitionBuilderAddInput(builder, each);
  for (const char* each : op.outputs) TF_OpDefinitionBuilderAddOutput(builder, each);
  if (op.is_stateful)
    TF_OpDefinitionBuilderSetIsStateful(builder, true);  // the call sets the flag even with false
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder,
                                                  op.is_stateful ? &infer_scalar : &infer_unknown);
  const Status status;
  TF_RegisterOpDefinition(builder, status.get());  // takes ownership of the builder
  status.check();
}

}  // namespace

void register_ops() {
  const char* const reduce_op = "op: {'sum', 'average', 'min', 'max', 'product'} = 'sum'";
  const char* const kind =
      "kind: {'broadcast', 'all_gather', 'all_to_all', 'reduce_scatter', 'barrier'}";
  add({"SmdistStart",
       {"values: N * T"},
       {"handle: int64"},
       {"T: " SMDIST_SUMMED, "N: int >= 1", reduce_op, "scale: float = 1.0", "group: int = 0",
        "key: string = ''", "label: string = ''"},
       true});
  add({"SmdistWait",
       {"handle: int64"},
       {"values: N * T"},
       {"T: " SMDIST_SUMMED, "N: int >= 1"},
       false});
  add({"SmdistMove",
       {"value: T", "sent: int64", "received: int64"},
       {"handle: int64"},
       {"T: type", kind, reduce_op, "root: int = 0", "group: int = 0", "key: string = ''",
        "label: string = ''"},
       true});
  add({"SmdistSend",
       {"value: T", "peer: int64", "tag: int64"},
       {"handle: int64"},
       {"T: type"},
       true});
  add({"SmdistReceive",
       {"shape: int64", "peer: int64", "tag: int64"},
       {"handle: int64"},
       {"T: type"},
       true});
  add({"SmdistMoved", {"handle: int64"}, {"value: T"}, {"T: type"}, false});
  add({"SmdistAwait", {"handle: int64"}, {"values: N * T"}, {"T: type", "N: int >= 1"}, false});
}

namespace {

// TensorFlow collects the ops that are registered while it loads a library.
const struct AtLoad {
  AtLoad() noexcept {
    try {
      register_ops();
      register_kernels();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "smdist: TensorFlow refused to register an op: %s\n", error.what());
    }
  }
} at_load;

}  // namespace
}  // namespace smdist::tensorflow_binding
