# SPDX-License-Identifier: Apache-2.0
"""Activation offload: saved tensors are on the host between forward and backward pass.

ActivationOffload   one for a model: streams, pinned memory, horizon
StepOffload         one for a step: what is saved, and which layers are on the device
LayerOrder          which layers the schedule uses next
SavedStorage        bytes of a storage, on the host and sometimes on the device
DeviceCopies        copies on streams of their own
"""

from smdist.modelparallel.torch.executor.offload.activation_offload import ActivationOffload
from smdist.modelparallel.torch.executor.offload.received_values import without_memory
from smdist.modelparallel.torch.executor.offload.step_offload import (
    LEAST_BYTES,
    RepeatableUnpack,
    StepOffload,
)

__all__ = ["LEAST_BYTES", "ActivationOffload", "RepeatableUnpack", "StepOffload", "without_memory"]
