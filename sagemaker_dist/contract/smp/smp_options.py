# SPDX-License-Identifier: Apache-2.0
"""Typed options of AWS's model parallel library (SMP), versions 1 and 2.

With SageMaker's SDK, pass `distribution=SMPv1(...).distribution()`. Options that are None are not
sent, so that the library uses its own defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.contract.smp.keys import MPI, V1, V2
from sagemaker_dist.contract.smp.smp_checks import smp_faults
from sagemaker_dist.errors import OptionError, raise_all

_PLACEMENT: Final = "placement_strategy"
SDK_PLACEMENTS: Final = {"DPT": "cluster", "TPD": "spread"}  # SDK documentation: the same orders


@dataclass(frozen=True, slots=True, kw_only=True)
class SMPv1:
    """Options of AWS's model parallel library, version 1, which mpi starts.

    AWS archived this version in 2023. Options that are None are not sent.

    Attributes:
        partitions: Number of stages into which the model is divided, at least 1. This is the name
            of the option for TensorFlow, and for PyTorch before v1.6. AWS's default is 1 with
            sharded data parallelism; without it, the option is required.
        pipeline_parallel_degree: New name of `partitions` for PyTorch from v1.6 on. Pass only one
            of `partitions` and `pipeline_parallel_degree`.
        microbatches: Number of parts of each batch; 1 turns pipelining off. AWS's default is 1.
        pipeline: "interleaved" (backward passes as soon as possible) or "simple" (all forward
            passes first). AWS's default is "interleaved". A third value, "_only_forward", is not
            documented by AWS.
        optimize: "memory" or "speed": quantity to optimize in tensor parallel transformer layers
            and in automatic partitioning. AWS's default is "memory".
        placement_strategy: Order of the letters D (data), P (pipeline) and T (tensor), such as
            "DPT". The dimension of the last letter varies fastest with the rank. "cluster" stands
            for "DPT", and "spread" for "TPD". SageMaker's SDK accepts only these two orders.
            AWS's default is "cluster".
        auto_partition: True if the library assigns layers to partitions. AWS's default is True.
        default_partition: Partition of layers that the script does not assign, 0 to partitions - 1.
            It is required if auto_partition is False, and needs `partitions`. AWS's default is 0.
        contiguous: For TensorFlow: True if the operations of a partition must be connected in the
            graph. AWS's default is True.
        horovod: For TensorFlow: True if Horovod averages gradients. AWS's default is False.
        memory_weight: Weight of memory against computation in automatic partitioning, 0.0 to 1.0.
            AWS's default is 0.8, or 0.2 if optimize is "speed".
        ddp: True if DistributedDataParallel averages gradients; required if
            tensor_parallel_degree is above 1. AWS's default is False.
        ddp_port: TCP port of DistributedDataParallel. AWS's default is the port of the job.
        ddp_dist_backend: "auto" (SMDDP's AllGather where it is supported) or "nccl". AWS's default
            is "auto".
        active_microbatches: Largest number of microbatches in flight, at least 1. AWS's default
            is partitions + 2.
        deterministic_server: True to execute requests in the same order on all replicas. AWS's
            default is False.
        offload_activations: True to move checkpointed activations to CPU memory. AWS's default is
            False.
        activation_loading_horizon: Number of pipeline tasks by which activations are loaded back
            to the GPU in advance, at least 1. AWS's default is 4.
        tensor_parallel_degree: Number of ranks over which a layer is split. AWS's default is 1.
        prescaled_batch: True if the ranks that share a layer get the same batch. AWS's default is
            False.
        shard_optimizer_state: True to divide the optimizer's state among replicas. AWS's default
            is False.
        fp16: True to train in FP16. AWS's default is False.
        fp16_params: True to create the parameters of tensor parallel layers in FP16. AWS's default
            is False.
        bf16: True to train in BF16; requires sharded data parallelism. AWS's default is False.
        skip_tracing: True to skip tracing of the model before training. AWS's default is False.
        sharded_data_parallel_degree: Number of ranks among which parameters, gradients and
            optimizer state are divided. It must divide the data parallel degree. AWS's default is
            1.
        sdp_reduce_bucket_size: Size of a gradient bucket, in elements. AWS's default is
            500,000,000.
        sdp_param_persistence_threshold: Size in elements below which a parameter is not sharded.
            AWS's default is 1,000,000.
        sdp_max_live_parameters: Largest number of parameters that are gathered at the same time.
            AWS's default is 1,000,000,000.
        sdp_hierarchical_allgather: True to gather shards within each host first. AWS's default is
            True.
        sdp_gradient_clipping: Largest L2 norm of gradients; larger gradients are scaled down. AWS's
            default is 1.0.
        load_partition: True to load a saved partition. AWS does not document this option.
        partition_file: Path of the saved partition. AWS does not document this option.
        delayed_parameter_initialization: True to initialize parameters only after they are
            assigned to ranks. AWS does not document this option; AWS's examples have False.
        static_mode: Switch that AWS does not document; AWS's examples have False.
        fast_mode: Switch that AWS does not document; AWS's examples have False.
        processes_per_host: Ranks on each host, at most one per GPU; sent in `distribution["mpi"]`.
        custom_mpi_options: Further arguments of mpirun; sent in `distribution["mpi"]`.

    Raises:
        OptionError: A value is wrong, or options exclude each other; all faults are reported.
    """

    partitions: int | None = None
    pipeline_parallel_degree: int | None = None
    microbatches: int | None = None
    pipeline: str | None = None
    optimize: str | None = None
    placement_strategy: str | None = None
    auto_partition: bool | None = None
    default_partition: int | None = None
    contiguous: bool | None = None
    horovod: bool | None = None
    memory_weight: float | None = None
    ddp: bool | None = None
    ddp_port: int | None = None
    ddp_dist_backend: str | None = None
    active_microbatches: int | None = None
    deterministic_server: bool | None = None
    offload_activations: bool | None = None
    activation_loading_horizon: int | None = None
    tensor_parallel_degree: int | None = None
    prescaled_batch: bool | None = None
    shard_optimizer_state: bool | None = None
    fp16: bool | None = None
    fp16_params: bool | None = None
    bf16: bool | None = None
    skip_tracing: bool | None = None
    sharded_data_parallel_degree: int | None = None
    sdp_reduce_bucket_size: int | None = None
    sdp_param_persistence_threshold: int | None = None
    sdp_max_live_parameters: int | None = None
    sdp_hierarchical_allgather: bool | None = None
    sdp_gradient_clipping: float | None = None
    load_partition: bool | None = None
    partition_file: str | None = None
    delayed_parameter_initialization: bool | None = None
    static_mode: bool | None = None
    fast_mode: bool | None = None
    processes_per_host: int | None = None
    custom_mpi_options: str | None = None

    def __post_init__(self) -> None:
        raise_all(_v1_faults(self))

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`.

        Options that are None are left out. The placement_strategy "DPT" is replaced by "cluster",
        and "TPD" by "spread", which mean the same, because the SDK accepts only these two words.
        """
        parameters = _given(self, V1)
        if _PLACEMENT in parameters:  # checked by the SDK: 2.257.7, fw_utils.validate_mp_config
            order = parameters[_PLACEMENT]
            parameters[_PLACEMENT] = SDK_PLACEMENTS.get(order, order)
        return {**_section(parameters), "mpi": {"enabled": True, **_given(self, MPI)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SMPv2:
    """Options of AWS's model parallel library, version 2, which torch_distributed starts.

    Scripts import this library as `torch.sagemaker`. Options that are None are not sent.

    Attributes:
        hybrid_shard_degree: Number of ranks among which FSDP divides the model. 1 turns sharding
            off. 0 leaves the choice to the script's FSDP; with tensor parallelism, 0 stands for
            the largest possible number. AWS's default is 0.
        sm_activation_offloading: True to offload activations with the library's own code, False to
            use PyTorch's code. AWS's default is True.
        activation_loading_horizon: Largest number of offloaded layers whose inputs are in GPU
            memory at the same time, at least 1. AWS's default is 2.
        fsdp_cache_flush_warnings: True to warn when PyTorch's memory cache is flushed. AWS's
            default is True.
        allow_empty_shards: True to allow shards without elements. AWS's default is False.
        tensor_parallel_degree: Number of ranks over which a layer is split. AWS's default is 1.
        context_parallel_degree: Number of ranks over which a sequence is split, at most
            hybrid_shard_degree. AWS's default is 1.
        expert_parallel_degree: Number of ranks among which experts are divided; cannot be combined
            with tensor parallelism. AWS's default is 1.
        random_seed: Seed for ranks that share a layer or experts. AWS documents no default.

    Raises:
        OptionError: A value is wrong, or options exclude each other; all faults are reported.
    """

    hybrid_shard_degree: int | None = None
    sm_activation_offloading: bool | None = None
    activation_loading_horizon: int | None = None
    fsdp_cache_flush_warnings: bool | None = None
    allow_empty_shards: bool | None = None
    tensor_parallel_degree: int | None = None
    context_parallel_degree: int | None = None
    expert_parallel_degree: int | None = None
    random_seed: int | None = None

    def __post_init__(self) -> None:
        raise_all(smp_faults(_given(self, V2), version=2, where="SMPv2"))

    def distribution(self) -> dict[str, Any]:
        """Return the dict that SageMaker's SDK takes as `distribution=`, with the given options."""
        return {**_section(_given(self, V2)), "torch_distributed": {"enabled": True}}


def _v1_faults(options: SMPv1) -> Iterator[OptionError]:
    yield from smp_faults(_given(options, V1), version=1, where="SMPv1")
    for name, value in _given(options, MPI).items():
        yield from MPI[name].faults(name, value, "SMPv1")


def _given(options: SMPv1 | SMPv2, names: Iterable[str]) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _section(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {**parameters}}}}
