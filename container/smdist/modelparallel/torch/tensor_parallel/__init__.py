# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism of a model as it is: which layers are split over ranks, found and proved."""

from smdist.modelparallel.torch.tensor_parallel.marks import (
    set_tensor_parallelism,
    tensor_parallelism,
)
from smdist.modelparallel.torch.tensor_parallel.parallel_styles import parallelize_module
from smdist.modelparallel.torch.tensor_parallel.prepare import find, split
from smdist.modelparallel.torch.tensor_parallel.registered_classes import (
    replace_registered,
    tp_register,
    tp_register_with_module,
)
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import TensorPlan

__all__ = [
    "TensorPlan",
    "find",
    "parallelize_module",
    "replace_registered",
    "set_tensor_parallelism",
    "split",
    "tensor_parallelism",
    "tp_register",
    "tp_register_with_module",
]
