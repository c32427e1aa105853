# SPDX-License-Identifier: Apache-2.0
"""Typed options of SMP: `distribution=SMPv1(...).distribution()` for SageMaker's SDK.

Options that are left out are not sent, so that AWS's defaults hold; sources are listed in `keys`.
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
    """Version 1 of the model parallel library, which mpi starts (archived by AWS in 2023).

    Attributes:
        partitions: Stages that the model is cut into, at least 1: the name for TensorFlow, and
            for PyTorch before v1.6. AWS's default is 1 where data parallelism is sharded, else
            there is none.
        pipeline_parallel_degree: The same for PyTorch from v1.6 on; pass one of the two.
        microbatches: Pieces of each batch; 1 is no pipelining. AWS's default is 1.
        pipeline: "interleaved" (backward passes as soon as possible) or "simple" (all forward
            passes first). AWS's default is "interleaved". AWS takes "_only_forward", too,
            without describing it.
        optimize: "memory" or "speed", for transformer layers that are split and for automatic
            partitions. AWS's default is "memory".
        placement_strategy: "cluster" (neighbouring ranks hold one model), "spread" (ranks of one
            model are as far apart as possible), or an order of D, P and T (data, pipeline, tensor),
            whose last letter varies fastest over the ranks. AWS's default is "cluster", which is
            "DPT"; "spread" is "TPD". SageMaker's images take no other order from its SDK.
        auto_partition: Let the library assign layers to partitions. AWS's default is True.
        default_partition: Partition of layers that the script does not assign, 0 to partitions - 1;
            needed if auto_partition is False, and together with `partitions`. AWS's default is 0.
        contiguous: TensorFlow: partitions are connected in the graph. AWS's default is True.
        horovod: TensorFlow: Horovod averages gradients. AWS's default is False.
        memory_weight: Weight of memory against computation for automatic partitions, 0.0 to 1.0.
            AWS's default is 0.8, or 0.2 if optimize is "speed".
        ddp: DistributedDataParallel averages gradients; needed if tensor_parallel_degree is above
            1. AWS's default is False.
        ddp_port: The port of ddp. AWS's default is that of the job.
        ddp_dist_backend: "auto" (SMDDP's AllGather where it works) or "nccl". AWS's default is
            "auto".
        active_microbatches: Most microbatches in flight, at least 1. AWS's default is partitions +
            2.
        deterministic_server: Execute requests in the same order on all replicas. AWS's default
            is False.
        offload_activations: Checkpointed activations go to the CPU. AWS's default is False.
        activation_loading_horizon: Pipeline tasks ahead of which activations are loaded back, at
            least 1. AWS's default is 4.
        tensor_parallel_degree: Ranks that a layer is split among. AWS's default is 1.
        prescaled_batch: Ranks that share a layer get the same batch. AWS's default is False.
        shard_optimizer_state: Split the optimizer's state among replicas. AWS's default is False.
        fp16: Train in FP16. AWS's default is False.
        fp16_params: Make parameters of split layers in FP16. AWS's default is False.
        bf16: Train in BF16; only with sharded data parallelism. AWS's default is False.
        skip_tracing: Do not trace the model first. AWS's default is False.
        sharded_data_parallel_degree: Ranks that parameters, gradients and optimizer state are
            split among; divides the data parallel degree. AWS's default is 1.
        sdp_reduce_bucket_size: Elements of a gradient bucket. AWS's default is 500,000,000.
        sdp_param_persistence_threshold: Parameters of fewer elements are not split. AWS's
            default is 1,000,000.
        sdp_max_live_parameters: Parameters that may be whole at once. AWS's default is
            1,000,000,000.
        sdp_hierarchical_allgather: Gather within hosts first. AWS's default is True.
        sdp_gradient_clipping: The L2 norm that gradients are clipped to. AWS's default is 1.0.
        load_partition: Load a saved partition. AWS does not describe it.
        partition_file: Path of the saved partition. AWS does not describe it.
        delayed_parameter_initialization: Initialize parameters after they are assigned. AWS does
            not describe it; its examples have False.
        static_mode: AWS does not describe it; its examples have False.
        fast_mode: AWS does not describe it; its examples have False.
        processes_per_host: Ranks on each host, at most one per GPU; part of the mpi block.
        custom_mpi_options: Further options of mpirun; part of the mpi block.

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
        """Return the dict that SageMaker's SDK takes as `distribution=`, with the options that were
        given.

        SageMaker's SDK takes only 'cluster' and 'spread' as placement_strategy; the sagemaker-dist
        image takes all.
        """
        parameters = _given(self, V1)
        if (
            _PLACEMENT in parameters
        ):  # the SDK's name of the order (2.257.7, fw_utils.validate_mp_config)
            order = parameters[_PLACEMENT]
            parameters[_PLACEMENT] = SDK_PLACEMENTS.get(order, order)
        return {**_section(parameters), "mpi": {"enabled": True, **_given(self, MPI)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SMPv2:
    """Version 2 of the model parallel library (`torch.sagemaker`), which torch_distributed starts.

    Attributes:
        hybrid_shard_degree: Ranks that FSDP splits the model among: 0 leaves it to the script's
            FSDP, or takes the most that fit with tensor_parallel_degree; 1 splits nothing. AWS's
            default is 0.
        sm_activation_offloading: Offload activations with the library's own code instead of
            PyTorch's. AWS's default is True.
        activation_loading_horizon: How many offloaded layers may have their inputs in GPU memory
            at once, at least 1. AWS's default is 2.
        fsdp_cache_flush_warnings: Warn when PyTorch's memory cache is flushed. AWS's default is
            True.
        allow_empty_shards: Allow shards without elements. AWS's default is False.
        tensor_parallel_degree: Ranks that a layer is split among. AWS's default is 1.
        context_parallel_degree: Ranks that a sequence is split among, at most
            hybrid_shard_degree. AWS's default is 1.
        expert_parallel_degree: Ranks that experts are divided among; not together with tensor
            parallelism. AWS's default is 1.
        random_seed: Seed of the ranks that share a layer or experts. AWS names no default.

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
        """Return the dict that SageMaker's SDK takes as `distribution=`, with the options that were
        given.
        """
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
