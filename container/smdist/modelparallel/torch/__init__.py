# SPDX-License-Identifier: Apache-2.0
"""Public API of model parallelism for PyTorch: `import smdist.modelparallel.torch as smp`."""

from sagemaker_dist.contract.model_parallel import ModelParallel
from smdist.modelparallel.core.cluster import Cluster, Device
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
from smdist.modelparallel.core.cost import Link, StateBytes
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.torch import amp, nn, patches, sharded_data_parallel_checkpoint
from smdist.modelparallel.torch.capture import CaptureError
from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    NoCheckpointError,
    SkippedCheckpoint,
    SkippedCheckpointWarning,
    export,
    load,
    resume_from_checkpoint,
    save,
    save_checkpoint,
)
from smdist.modelparallel.torch.executor import StepError
from smdist.modelparallel.torch.materialization import delay_param_initialization, model_creation
from smdist.modelparallel.torch.parallel import DisagreementError, Parallel, parallelize
from smdist.modelparallel.torch.parallel.step_function import StepOutput
from smdist.modelparallel.torch.planning.make_plan import forecast, plan
from smdist.modelparallel.torch.program.partition_marks import partition, set_partition
from smdist.modelparallel.torch.program.tracing_flag import is_tracing
from smdist.modelparallel.torch.replicas.grad_clipping import clip_grad_norm_
from smdist.modelparallel.torch.session import end, init, is_initialized
from smdist.modelparallel.torch.smp.activation_checkpointing import set_activation_checkpointing
from smdist.modelparallel.torch.smp.comm import (
    UnsentError,
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    recv_from,
    send,
)
from smdist.modelparallel.torch.smp.distributed_model import DistributedModel
from smdist.modelparallel.torch.smp.distributed_optimizer import DistributedOptimizer
from smdist.modelparallel.torch.smp.rank_functions import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_pp_group,
    get_pp_process_group,
    get_rdp_group,
    get_rdp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_process_group,
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
from smdist.modelparallel.torch.smp.smp_state import state
from smdist.modelparallel.torch.smp.step_decorator import step
from smdist.modelparallel.torch.smp.unsupported import optimizers
from smdist.modelparallel.torch.tensor_parallel import (
    parallelize_module,
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
)
from smdist.modelparallel.torch.tensor_splits import loss_parallel
from smdist.modelparallel.torch.verification.verify import Verified, VerifyError, verify

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
    "CaptureError",
    "CheckpointError",
    "Cluster",
    "CommGroup",
    "Device",
    "DisagreementError",
    "DistributedModel",
    "DistributedOptimizer",
    "Link",
    "ModelParallel",
    "NoCheckpointError",
    "Parallel",
    "Plan",
    "RankType",
    "SkippedCheckpoint",
    "SkippedCheckpointWarning",
    "StateBytes",
    "StepError",
    "StepOutput",
    "UnsentError",
    "Verified",
    "VerifyError",
    "allgather",
    "amp",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "delay_param_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "end",
    "export",
    "forecast",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "loss_parallel",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "nn",
    "optimizers",
    "parallelize",
    "parallelize_module",
    "partition",
    "patches",
    "plan",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "set_tensor_parallelism",
    "sharded_data_parallel_checkpoint",
    "size",
    "state",
    "step",
    "tensor_parallelism",
    "tp_rank",
    "tp_register",
    "tp_register_with_module",
    "tp_size",
    "verify",
]
