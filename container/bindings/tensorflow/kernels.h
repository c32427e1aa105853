// SPDX-License-Identifier: Apache-2.0
// Kernels of the ops. A start op returns at once; a wait op blocks.
#pragma once

#include <string>

#include "async_operation.h"
#include "smdist/collective.h"
#include "smdist/reduce_op.h"
#include "status.h"

namespace smdist::tensorflow_binding {

// Return a string attribute of an op. Throws StatusError.
std::string text_attribute(TF_OpKernelConstruction* context, const char* name);
// Return the attribute "op" of an op. Throws StatusError, UsageError.
ReduceOp reduce_op_attribute(TF_OpKernelConstruction* context);

// Return the attributes "group", "key" and "label" of an op. Throws StatusError, UsageError.
SubmissionAttributes submission_attributes(TF_OpKernelConstruction* context);

// Attributes of the op SmdistMove.
struct RowCollectiveAttributes {
  Collective kind;
  ReduceOp op;
  int root;  // rank in the group
  SubmissionAttributes submission;
};
// Read the attributes of an SmdistMove op, and start the operation of one.
RowCollectiveAttributes row_collective_attributes(TF_OpKernelConstruction* context);
void start_row_collective(const RowCollectiveAttributes& attributes, TF_OpKernelContext* context);

// Start the send of an SmdistSend op. Its result, after it has ended, is an empty tensor.
void start_send(TF_OpKernelContext* context);
// Read the attribute "T" of an SmdistReceive op, and start the receive of one.
TF_DataType received_type(TF_OpKernelConstruction* context);
void start_receive(const TF_DataType& type, TF_OpKernelContext* context);

// Register the kernels of all ops with TensorFlow. Throws StatusError.
void register_kernels();

// Register all ops with TensorFlow. Throws StatusError.
void register_ops();

}  // namespace smdist::tensorflow_binding
