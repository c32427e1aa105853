// SPDX-License-Identifier: Apache-2.0
#include "reduce/kernel_templates.h"

namespace smdist {

Kernel baseline_kernel(Dtype dtype, ReduceOp op, Partial partial) {
  return kernel_of(dtype, op, partial);
}

}  // namespace smdist
