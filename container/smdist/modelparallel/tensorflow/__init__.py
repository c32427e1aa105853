# SPDX-License-Identifier: Apache-2.0
"""Model parallelism for Keras on TensorFlow: `import smdist.modelparallel.tensorflow as smp`."""

from sagemaker_dist.contract.model_parallel import ModelParallel
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.tensorflow.keras_api.distributed_keras_model import DistributedModel
from smdist.modelparallel.tensorflow.keras_api.keras_ranks import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    allgather,
    barrier,
    dp_rank,
    dp_size,
    get_dp_group,
    get_mp_group,
    get_pp_group,
    get_rdp_group,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from smdist.modelparallel.tensorflow.keras_api.keras_step import gradients, step
from smdist.modelparallel.tensorflow.keras_api.layer_stages import partition, set_partition
from smdist.modelparallel.tensorflow.keras_api.step_output import KerasStepOutput as StepOutput
from smdist.modelparallel.tensorflow.keras_capture import KerasCaptureError
from smdist.modelparallel.tensorflow.keras_checkpoint import KerasCheckpointError
from smdist.modelparallel.tensorflow.keras_session import end, init, is_initialized
from smdist.modelparallel.tensorflow.keras_stages.delayed_values import delay_param_initialization

__all__ = [
    "DP_GROUP",
    "MP_GROUP",
    "PP_GROUP",
    "RDP_GROUP",
    "TP_GROUP",
    "WORLD",
    "DistributedModel",
    "KerasCaptureError",
    "KerasCheckpointError",
    "ModelParallel",
    "Plan",
    "StepOutput",
    "allgather",
    "barrier",
    "delay_param_initialization",
    "dp_rank",
    "dp_size",
    "end",
    "get_dp_group",
    "get_mp_group",
    "get_pp_group",
    "get_rdp_group",
    "gradients",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mp_rank",
    "mp_size",
    "partition",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "set_partition",
    "size",
    "step",
    "tp_rank",
    "tp_size",
]
