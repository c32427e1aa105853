# SPDX-License-Identifier: Apache-2.0
"""Conversion of SMP v1's parameters to `ModelParallel`; unsupported parameters get a hint.

Every key of SMP v1 (`keys.V1`) is in one of this module's tables, or `model_parallel_options`
converts it. A test checks this for all keys. A value that turns no feature on, such as
`fp16: False`, is always allowed. Missing parameters get AWS's defaults: `microbatches` 1,
`pipeline` "interleaved", `optimize` "memory".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.schedule_limits import pipeline_faults
from sagemaker_dist.contract.smp.keys import V1
from sagemaker_dist.contract.smp.smp_checks import smp_faults
from sagemaker_dist.errors import OptionError, raise_all

Given = Mapping[str, Any]
WHERE: Final = "the dict of modelparallel"
_STAGES: Final = "pipeline_parallel_degree"
_SHARDED: Final = "sharded_data_parallel_degree"
_TENSOR: Final = "tensor_parallel_degree"
_CLIPPING: Final = "sdp_gradient_clipping"
_OFFLOAD: Final = "offload_activations"
_HORIZON: Final = "activation_loading_horizon"
_PIPELINE: Final = "interleaved"  # AWS's default

_GATHERING: Final = "FSDP2 gathers shards layer by layer, without this option"
# Keys that are refused unless their value is among the allowed ones: allowed values, why, hint.
REFUSED: Final[Mapping[str, tuple[tuple[object, ...], str, str]]] = {
    "contiguous": ((True,), "a stage has consecutive layers", "Pass True, or leave it out"),
    "horovod": ((True, False), "it is a bool, and replicas average their gradients", "Pass True"),
    "ddp_port": ((), "the launcher chooses the port", "Leave it out"),
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
}
_OF_SHARDS: Final = {  # keys that are refused with sharding, and have no effect without it; why
    "sdp_reduce_bucket_size": "FSDP2 reduces gradients layer by layer, without this option",
    "sdp_param_persistence_threshold": "FSDP2 shards all weights, also small ones",
    "sdp_max_live_parameters": _GATHERING,
    "sdp_hierarchical_allgather": "the algorithm that gathers shards is chosen by measurement at"
    " the start of the job",
}
_UNKNOWN: Final = ("static_mode", "fast_mode")


def model_parallel_options(parameters: Given, *, where: str = WHERE) -> dict[str, Any]:
    """Return the options of `ModelParallel` that correspond to SMP v1's parameters, by name.

    Args:
        parameters: Parameters of SMP v1, by key.
        where: Name of the parameters in messages, such as "the dict of modelparallel".

    Raises:
        OptionError: A key is unknown or not supported, or a value is wrong; all faults are
            reported.
    """
    raise_all(runtime_faults(parameters, where=where))
    shards = parameters.get(_SHARDED, 1)
    options: dict[str, Any] = {
        _STAGES: parameters.get("partitions", parameters.get(_STAGES, 1)),
        _TENSOR: parameters.get(_TENSOR, 1),
        "microbatches": parameters.get("microbatches", 1),
        "pipeline": parameters.get("pipeline", _PIPELINE),
        "active_microbatches": parameters.get("active_microbatches"),
        "placement_strategy": parameters.get("placement_strategy", "cluster"),
        "bf16": parameters.get("bf16", False),
        "fp16": parameters.get("fp16", False),
        **_placing(parameters),
    }
    if parameters.get(_OFFLOAD):
        options |= {_OFFLOAD: True, _HORIZON: parameters.get(_HORIZON)}
    if shards > 1:
        clipping = parameters.get(_CLIPPING, 1.0)
        options |= {"sharding": "full", "shard_degree": shards, "gradient_clipping": clipping}
    elif parameters.get("shard_optimizer_state"):
        options["sharding"] = "optimizer"
    return options


def _placing(parameters: Given) -> dict[str, Any]:
    if not parameters.get("auto_partition", True):
        return {"auto_partition": False, "default_partition": parameters["default_partition"]}
    if "memory_weight" in parameters:  # takes the place of optimize, which has a default
        return {"memory_weight": parameters["memory_weight"]}
    return {"optimize": parameters.get("optimize", "memory")}


def runtime_faults(parameters: Given, *, where: str = WHERE) -> Iterator[OptionError]:
    """Yield the faults that prevent the smdist runtime from running a job with these parameters.

    Args:
        parameters: Parameters of SMP v1, by key.
        where: Name of the parameters in messages, such as "the dict of modelparallel".
    """
    faults = list(smp_faults(parameters, version=1, where=where, for_smdist=True))
    yield from faults
    for name, (fine, why, hint) in REFUSED.items():
        is_valid = name in parameters and V1[name].is_valid(parameters[name])
        if is_valid and parameters[name] not in fine:
            yield OptionError(
                f"{where} has {name}={parameters[name]!r}",
                why,
                hint,
                about=name,
                kind="unsupported",
            )
    if parameters.get("fp16_params") is True and parameters.get("fp16") is not True:
        yield OptionError(
            f"{where} has fp16_params=True without fp16=True",
            "it creates SMP v1's own distributed layers in float16, without loss scale and master"
            " weights, and sagemaker_dist has no such layers",
            "Pass fp16=True, which converts the whole model, or convert the model in the script",
            about="fp16_params",
            kind="unsupported",
        )
    if not faults:
        yield from _job_faults(parameters, where)


def _job_faults(parameters: Given, where: str) -> Iterator[OptionError]:
    is_sharded = parameters.get(_SHARDED, 1) > 1
    is_split = parameters.get(_TENSOR, 1) > 1
    if is_split:
        yield from _tensor_faults(parameters, where)
    has_stages = "partitions" in parameters or _STAGES in parameters
    if not is_sharded and not is_split and not has_stages:
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
            "AWS does not document this schedule, and sagemaker_dist does not have it",
            "Pass 'simple' or 'interleaved'; a step that does not call backward runs only forward",
            about="pipeline",
            kind="unsupported",
        )
    else:
        yield from pipeline_faults(
            parameters.get("pipeline", _PIPELINE),
            virtual_stages=None,
            active_microbatches=parameters.get("active_microbatches"),
        )
    if is_sharded:
        yield from _shard_faults(parameters, where)


def _shard_faults(parameters: Given, where: str) -> Iterator[OptionError]:
    """Yield the faults of parameters that shard the state of replicas."""
    for name, why in _OF_SHARDS.items():
        if name in parameters:
            yield OptionError(
                f"{where} has {name}={parameters[name]!r}",
                why,
                "Leave it out",
                about=name,
                kind="unsupported",
            )
    if parameters.get(_CLIPPING) == 0:
        yield OptionError(
            f"{where} has {_CLIPPING}=0",
            "it would scale all gradients to zero",
            "Pass a number above 0, or ModelParallel(sharding='full') for no clipping",
            about=_CLIPPING,
        )


def _tensor_faults(parameters: Given, where: str) -> Iterator[OptionError]:
    """Yield the faults of parameters that split layers over ranks."""
    degree = parameters[_TENSOR]
    if parameters.get("prescaled_batch") is False:
        yield OptionError(
            f"{where} has prescaled_batch=False",
            f"the ranks that share a layer get the same batch: {_TENSOR} is {degree}",
            "Pass prescaled_batch=True, and give each replica its data by smp.rdp_rank()",
            about="prescaled_batch",
            kind="unsupported",
        )


def smp_warnings(parameters: Given) -> Iterator[str]:
    """Yield warnings, one sentence each, for parameters that have no effect in the smdist runtime.

    A parameter is included only if ignoring it does not change the result of the training.
    """
    for name in _UNKNOWN:
        if parameters.get(name) is True:
            yield f"{name}=True has no effect: AWS does not document it."
    if parameters.get("skip_tracing") is True:
        yield (
            "skip_tracing=True has no effect: models are traced without allocating their weights."
        )
    if parameters.get("fp16_params") is True:
        yield "fp16_params=True has no effect: fp16=True converts the whole model."
    if parameters.get("delayed_parameter_initialization") is True:
        yield (
            "delayed_parameter_initialization=True has no effect by itself: models that the script"
            " creates in a smp.model_creation() or smp.delay_param_initialization() block are"
            " initialized after the split in any case."
        )
    if parameters.get("ddp") is False:
        yield "ddp=False has no effect: with several replicas, gradients are always averaged."
    if parameters.get(_TENSOR, 1) > 1 and "prescaled_batch" not in parameters:
        yield (
            "prescaled_batch is True here: ranks that share a layer get the same batch, so give"
            " each replica its data by smp.rdp_rank()."
        )
    if parameters.get("ddp_dist_backend") == "nccl":
        yield "ddp_dist_backend='nccl' is used only for GPU tensors; smdist sends CPU tensors."
    yield from _unused_option_warnings(parameters)


def _unused_option_warnings(parameters: Given) -> Iterator[str]:
    """Yield a warning for each parameter that has no effect because its feature is turned off."""
    is_sharded = parameters.get(_SHARDED, 1) != 1
    unused = dict.fromkeys((*_OF_SHARDS, _CLIPPING), _SHARDED) if not is_sharded else {}
    if not parameters.get(_OFFLOAD):
        unused |= {_HORIZON: _OFFLOAD}
    if parameters.get("auto_partition", True):
        unused |= {"default_partition": "auto_partition=False"}
    else:
        unused |= dict.fromkeys(("optimize", "memory_weight"), "auto_partition=True")
    if not parameters.get("tensor_parallel_degree", 1) > 1:
        unused |= (
            {"prescaled_batch": "tensor_parallel_degree"}
            if parameters.get("prescaled_batch")
            else {}
        )
    for name, switch in unused.items():
        if name in parameters:
            yield f"{name} has no effect: it is an option of {switch}, which is not set."
