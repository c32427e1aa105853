// SPDX-License-Identifier: Apache-2.0
// What the ops do. Those that start something return at once; those that wait block.
#pragma once

#include <string>

#include "smdist/collective.h"
#include "smdist/reduce_op.h"
#include "statuses.h"

namespace smdist::tensorflow_binding {

std::string text_attribute(TF_OpKernelConstruction* context, const char* name);
ReduceOp reduce_op_attribute(TF_OpKernelConstruction* context);  // "op"

// What an op of kind SmdistMove was told.
struct Move {
  Collective kind;
  ReduceOp op;
  int root;
};
Move move_of(TF_OpKernelConstruction* context);
void start_move(const Move& move, TF_OpKernelContext* context);

// Adds the kernels of all ops to TensorFlow's. Throws StatusError.
void register_kernels();

// Describes all ops to TensorFlow. Throws StatusError.
void register_ops();

}  // namespace smdist::tensorflow_binding
