# SPDX-License-Identifier: Apache-2.0
"""Conversion of SMP v1's parameters to options of `ModelParallel`, with hints for unsupported ones.

Every key of `keys.V1` is in one of the tables below, or is converted by `model_parallel_options`; a
test checks all keys. A key with a value that switches nothing on, such as `fp16: False`, is
allowed. Defaults are AWS's: one microbatch, "interleaved", balanced by "memory".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.smp.keys import V1
from sagemaker_dist.contract.smp.smp_checks import smp_faults
from sagemaker_dist.errors import OptionError, raise_all

Given = Mapping[str, Any]
WHERE: Final = "the dict of modelparallel"
_STAGES: Final = "pipeline_parallel_degree"
_SHARDED: Final = "sharded_data_parallel_degree"
_CLIPPING: Final = "sdp_gradient_clipping"

_TENSORFLOW: Final = "it is an option for TensorFlow, and only torch models are split here"
_TENSORS: Final = "layers are not split here: stages hold whole layers"
_AUTOCAST: Final = "Use torch.autocast in the step, with smp.amp.GradScaler for float16"
_GATHERING: Final = "shards are gathered layer by layer with FSDP2"
REFUSED: Final[Mapping[str, tuple[tuple[object, ...], str, str]]] = {  # allowed values, why, hint
    "tensor_parallel_degree": (
        (1,),
        _TENSORS,
        f"Use more stages ({_STAGES}), or shards ({_SHARDED}), and leave it out",
    ),
    "contiguous": ((), _TENSORFLOW, "Leave it out"),
    "horovod": ((False,), _TENSORFLOW, "Pass ddp=True: replicas average their gradients"),
    "ddp_port": ((), "the job sets the port itself", "Leave it out"),
    "offload_activations": (
        (False,),
        "activations stay on their device",
        "Use smp.set_activation_checkpointing and more microbatches, and leave it out",
    ),
    "fp16": ((False,), "weights stay in float32", _AUTOCAST),
    "fp16_params": ((False,), "weights stay in float32", _AUTOCAST),
    "load_partition": (
        (False,),
        "partition files of AWS's library have a format of their own",
        "Use ModelParallel(plan='plan.json') with a plan that sagemaker-dist saved",
    ),
    "partition_file": (
        (),
        "partition files of AWS's library have a format of their own",
        "Use ModelParallel(plan='plan.json') with a plan that sagemaker-dist saved",
    ),
    "delayed_parameter_initialization": (
        (False,),
        "the script sets this itself",
        "Create the model under smp.delay_param_initialization(), and leave this out",
    ),
}
_OF_SHARDS: Final = {  # refused with sharding, without effect otherwise
    "sdp_reduce_bucket_size": "gradients are summed layer by layer with FSDP2",
    "sdp_param_persistence_threshold": "all weights are sharded with FSDP2",
    "sdp_max_live_parameters": _GATHERING,
    "sdp_hierarchical_allgather": "the way to gather shards is measured at the start of the job",
}
_UNKNOWN: Final = ("static_mode", "fast_mode")


def model_parallel_options(parameters: Given, *, where: str = WHERE) -> dict[str, Any]:
    """Return the options of `ModelParallel` that correspond to SMP's parameters.

    Raises:
        OptionError: A key is unknown or not supported, or a value is wrong; all faults are
            reported.
    """
    raise_all(runtime_faults(parameters, where=where))
    shards = parameters.get(_SHARDED, 1)
    options: dict[str, Any] = {
        _STAGES: parameters.get("partitions", parameters.get(_STAGES, 1)),
        "microbatches": parameters.get("microbatches", 1),
        "pipeline": parameters.get("pipeline", "interleaved"),
        "active_microbatches": parameters.get("active_microbatches"),
        "placement_strategy": parameters.get("placement_strategy", "cluster"),
        "bf16": parameters.get("bf16", False),
        **_placing(parameters),
    }
    if shards > 1:
        clipping = parameters.get(_CLIPPING, 1.0)
        options |= {"sharding": "full", "shard_degree": shards, "gradient_clipping": clipping}
    elif parameters.get("shard_optimizer_state"):
        options["sharding"] = "optimizer"
    return options


def _placing(parameters: Given) -> dict[str, Any]:
    if not parameters.get("auto_partition", True):
        return {"auto_partition": False, "default_partition": parameters["default_partition"]}
    if "memory_weight" in parameters:  # it replaces optimize, which has a default
        return {"memory_weight": parameters["memory_weight"]}
    return {"optimize": parameters.get("optimize", "memory")}


def runtime_faults(parameters: Given, *, where: str = WHERE) -> Iterator[OptionError]:
    """Yield the faults of parameters that the smdist runtime is to run."""
    faults = list(smp_faults(parameters, version=1, where=where, for_smdist=True))
    yield from faults
    for name, (fine, why, hint) in REFUSED.items():
        is_valid = name in parameters and V1[name].holds(parameters[name])
        if is_valid and parameters[name] not in fine:
            yield OptionError(f"{where} has {name}={parameters[name]!r}", why, hint, about=name)
    if not faults:
        yield from _job_faults(parameters, where)


def _job_faults(parameters: Given, where: str) -> Iterator[OptionError]:
    is_sharded = parameters.get(_SHARDED, 1) > 1
    if not is_sharded and "partitions" not in parameters and _STAGES not in parameters:
        yield OptionError(
            f"{where} has no {_STAGES}",
            "SMP v1 has no default for it",
            f"Add {_STAGES!r}, or use ModelParallel(), whose planner chooses it",
            about=_STAGES,
            kind="missing",
        )
    if parameters.get("pipeline") == "_only_forward":
        yield OptionError(
            f"{where} has pipeline='_only_forward'",
            "AWS does not document it",
            "Pass 'simple' or 'interleaved': a step without backward runs only forward",
            about="pipeline",
        )
    elif parameters.get("pipeline") == "simple" and "active_microbatches" in parameters:
        yield OptionError(
            f"{where} has active_microbatches with pipeline='simple'",
            "that schedule runs all forward passes first",
            "Leave active_microbatches out, or pass pipeline='interleaved'",
            about="active_microbatches",
        )
    for name, why in _OF_SHARDS.items() if is_sharded else ():
        if name in parameters:
            yield OptionError(
                f"{where} has {name}={parameters[name]!r}", why, "Leave it out", about=name
            )
    if is_sharded and parameters.get(_CLIPPING) == 0:
        yield OptionError(
            f"{where} has {_CLIPPING}=0",
            "it would scale all gradients to zero",
            "Pass a number above 0, or ModelParallel(sharding='full') for no clipping",
            about=_CLIPPING,
        )


def smp_warnings(parameters: Given) -> Iterator[str]:
    """Yield warnings for parameters that have no effect here and do not change the training's
    result.
    """
    for name in _UNKNOWN:
        if parameters.get(name) is True:
            yield f"{name}=True has no effect: AWS does not document it."
    if parameters.get("skip_tracing") is True:
        yield (
            "skip_tracing=True has no effect: models are traced without allocating their weights."
        )
    if parameters.get("ddp") is False:
        yield "ddp=False has no effect: with several replicas, gradients are averaged."
    if parameters.get("ddp_dist_backend") == "nccl":
        yield "ddp_dist_backend='nccl' carries GPU tensors; CPU tensors are carried by smdist."
    yield from _idle(parameters)


def _idle(parameters: Given) -> Iterator[str]:
    """Yield warnings for options of features that are off."""
    is_sharded = parameters.get(_SHARDED, 1) != 1
    idle = dict.fromkeys((*_OF_SHARDS, _CLIPPING), _SHARDED) if not is_sharded else {}
    idle |= {"activation_loading_horizon": "offload_activations"}
    if parameters.get("auto_partition", True):
        idle |= {"default_partition": "auto_partition=False"}
    else:
        idle |= dict.fromkeys(("optimize", "memory_weight"), "auto_partition=True")
    if not parameters.get("tensor_parallel_degree", 1) > 1:
        idle |= (
            {"prescaled_batch": "tensor_parallel_degree"}
            if parameters.get("prescaled_batch")
            else {}
        )
    for name, switch in idle.items():
        if name in parameters:
            yield f"{name} has no effect: it is an option of {switch}, which is not on."
