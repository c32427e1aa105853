// SPDX-License-Identifier: Apache-2.0
// Kernels of the ops. A start op returns at once; a wait op blocks.
#pragma once

#include <string>

#include "smdist/collective.h"
#include "smdist/reduce_op.h"
#include "status.h"

namespace smdist::tensorflow_binding {

std::string text_attribute(TF_OpKernelConstruction* context, const char* name);
ReduceOp reduce_op_attribute(TF_OpKernelConstruction* context);  // "op"

// Attributes of the op SmdistMove.
struct RowCollectiveAttributes {
  Collective kind;
  ReduceOp op;
  int root;
};
RowCollectiveAttributes row_collective_attributes(TF_OpKernelConstruction* context);
void start_row_collective(const RowCollectiveAttributes& attributes, TF_OpKernelContext* context);

// Registers the kernels of all ops with TensorFlow. Throws StatusError.
void register_kernels();

// Registers all ops with TensorFlow. Throws StatusError.
void register_ops();

}  // namespace smdist::tensorflow_binding
