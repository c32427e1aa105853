# SPDX-License-Identifier: Apache-2.0
"""Model parallelism for Keras on TensorFlow: `import smdist.modelparallel.tensorflow as smp`."""

from sagemaker_dist.contract.model_parallel import ModelParallel
from smdist.modelparallel.core.comm_groups import (
    DP_GROUP,
    DP_RANK,
    MP_GROUP,
    MP_RANK,
    PP_GROUP,
    PP_RANK,
    RDP_GROUP,
    RDP_RANK,
    TP_GROUP,
    TP_RANK,
    WORLD,
    WORLD_RANK,
    CommGroup,
    RankType,
)
from smdist.modelparallel.core.session_agreement import DisagreementError
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.tensorflow.keras_api.checkpoint_manager import CheckpointManager
from smdist.modelparallel.tensorflow.keras_api.distributed_keras_model import DistributedModel
from smdist.modelparallel.tensorflow.keras_api.keras_comm import (
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    recv_from,
    send,
)
from smdist.modelparallel.tensorflow.keras_api.keras_ranks import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_mp_group,
    get_pp_group,
    get_rdp_group,
    get_tp_group,
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
from smdist.modelparallel.tensorflow.keras_api.plan_model import plan
from smdist.modelparallel.tensorflow.keras_api.step_output import KerasStepOutput as StepOutput
from smdist.modelparallel.tensorflow.keras_api.torch_only_names import refuse_name
from smdist.modelparallel.tensorflow.keras_capture import KerasCaptureError
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import delay_param_initialization
from smdist.modelparallel.tensorflow.keras_checkpoint import KerasCheckpointError
from smdist.modelparallel.tensorflow.keras_session import (
    end,
    init,
    is_initialized,
    register_post_partition_hook,
)

__all__ = [
    "DP_GROUP",
    "DP_RANK",
    "MP_GROUP",
    "MP_RANK",
    "PP_GROUP",
    "PP_RANK",
    "RDP_GROUP",
    "RDP_RANK",
    "TP_GROUP",
    "TP_RANK",
    "WORLD",
    "WORLD_RANK",
    "CheckpointManager",
    "CommGroup",
    "DisagreementError",
    "DistributedModel",
    "KerasCaptureError",
    "KerasCheckpointError",
    "ModelParallel",
    "Plan",
    "RankType",
    "StepOutput",
    "allgather",
    "barrier",
    "broadcast",
    "delay_param_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "end",
    "get_dp_group",
    "get_mp_group",
    "get_pp_group",
    "get_rdp_group",
    "get_tp_group",
    "gradients",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "partition",
    "plan",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "register_post_partition_hook",
    "send",
    "set_partition",
    "size",
    "step",
    "tp_rank",
    "tp_size",
]


def __getattr__(name: str) -> object:
    refuse_name(name, __name__)
