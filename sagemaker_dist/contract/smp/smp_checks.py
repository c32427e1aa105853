# SPDX-License-Identifier: Apache-2.0
"""Checks of SMP parameters: unknown keys, wrong values, and keys that exclude each other.

The docstring of each rule names its source. The module `keys` lists the documentation pages. "SDK"
means fw_utils.validate_mp_config in the source code of SageMaker SDK 2.257.7. All sources were read
2026-11-21. A rule about several keys skips invalid values, because the checks of the single keys
report them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.smp.keys import KEYS, V1, V2
from sagemaker_dist.errors import OptionError, closest

Faults = Iterator[OptionError]
Given = Mapping[str, Any]
_STARTER: Final = {1: "mpi", 2: "torch_distributed"}
_STAGES: Final = "pipeline_parallel_degree"
_SHARDED: Final = "sharded_data_parallel_degree"
_TENSOR: Final = "tensor_parallel_degree"
_FIRST: Final = {  # key that the hint proposes for empty parameters, by version
    1: repr(_STAGES),
    2: "'hybrid_shard_degree'",
    None: f"{_STAGES!r} for SMP v1 or 'hybrid_shard_degree' for SMP v2",
}


def smp_faults(
    parameters: Given, *, version: int | None, where: str, for_smdist: bool = False
) -> Faults:
    """Yield the faults of `parameters` for AWS's model parallel library (SMP).

    A value that is a pipeline variable is a fault, because SageMaker's SDK cannot send it.

    Args:
        parameters: Parameters by key.
        version: 1 if mpi starts the library, 2 if torch_distributed starts it. None if unknown:
            then the keys of both versions are allowed, and rules between keys are not checked.
        where: Place of the parameters in messages, such as "SMPv1".
        for_smdist: True if the smdist runtime runs the job in place of SMP v1. Then rules that only
            SageMaker's SDK has are skipped, and a pipeline with sharding is allowed.
    """
    if not parameters and not for_smdist:
        yield OptionError(
            f"{where} is empty",
            "SageMaker's SDK then sends nothing to the library",
            f"Add {_FIRST[version]}",
            kind="missing",
        )
    for name, value in parameters.items():
        yield from _key_faults(name, value, version, where)
    for rule in _SMDIST_RULES if for_smdist else _RULES[version]:
        for name, what, why, hint in rule(parameters):
            yield OptionError(f"{where} has {what}", why, hint, about=name, kind="conflict")


def _key_faults(name: str, value: object, version: int | None, where: str) -> Faults:
    other = 2 if version == 1 else 1
    if name in KEYS[version]:
        yield from KEYS[version][name].faults(name, value, where)
    elif name in KEYS[other]:
        yield OptionError(
            f"{where} has the key {name!r}",
            f"it is a key of SMP v{other}, which {_STARTER[other]} starts",
            f"Leave it out, or start the job with {_STARTER[other]}",
            about=name,
            kind="unsupported",
        )
    else:
        yield OptionError(
            f"{where} has the key {name!r}",
            "no such key exists",
            closest(str(name), KEYS[version]),
            about=str(name),
            kind="unknown",
        )


Rule = Iterator[tuple[str, str, str, str]]  # for each fault: key, what, why, hint


def _one_name_for_stages(given: Given) -> Rule:
    """Yield a fault if both `partitions` and `pipeline_parallel_degree` are given.

    They are two names of the number of stages: SMP for PyTorch renamed `partitions` to
    `pipeline_parallel_degree` in v1.6. Source: SDK documentation.
    """
    if "partitions" in given and _STAGES in given:
        yield (
            _STAGES,
            f"both 'partitions' and {_STAGES!r}",
            "they are two names of the same parameter",
            "Keep one of them",
        )


def _default_partition(given: Given) -> Rule:
    """Yield a fault if `default_partition` is missing with auto_partition=False, or is too large.

    Partitions are numbered from 0. Source: SageMaker's SDK.
    """
    name = "default_partition"
    if given.get("auto_partition") is False and name not in given:
        yield (
            "auto_partition",
            "auto_partition=False without default_partition",
            "layers that the script does not assign need a partition",
            "Add default_partition",
        )
    stages = "partitions" if "partitions" in given else _STAGES
    partitions, default = _valid_value(given, stages), _valid_value(given, name)
    is_known = stages in given and name in given
    if partitions and is_known and default is not None and default >= partitions:
        yield (
            name,
            f"{name}={default} with {stages}={partitions}",
            "partitions are numbered from 0",
            f"Pass {_from_to(0, partitions - 1)}",
        )


def _old_name(given: Given) -> Rule:
    """Yield a fault if `default_partition` is given without `partitions`.

    SageMaker's SDK compares both values, and raises a KeyError without `partitions`.
    """
    name = "default_partition"
    if name in given and "partitions" not in given:
        yield (
            name,
            f"{name}={given[name]!r} without partitions",
            "SageMaker's SDK compares the two parameters, and fails without partitions",
            f"Pass the number of stages as partitions, not as {_STAGES}",
        )


def _data_parallel(given: Given) -> Rule:
    """Yield a fault if `ddp_port` or `ddp_dist_backend` is given without `ddp`.

    `ddp` together with `horovod` is a fault, too. Source: SageMaker's SDK, which requires only
    that `ddp` is given, not that it is True.
    """
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in given and "ddp" not in given:
            yield (
                name,
                f"{name}={given[name]!r} without ddp",
                "the parameter has an effect only with ddp",
                "Pass ddp=True",
            )
    if given.get("ddp") is True and given.get("horovod") is True:
        yield (
            "horovod",
            "both ddp=True and horovod=True",
            "only one of them can average the gradients",
            "Pass ddp for PyTorch or horovod for TensorFlow",
        )


def _half_precision(given: Given) -> Rule:
    """Yield a fault if BF16 is on without sharded data parallelism, or together with FP16.

    Source: Developer Guide.
    """
    if given.get("bf16") is not True:
        return
    if _valid_value(given, _SHARDED) == 1:
        yield (
            "bf16",
            f"bf16=True without {_SHARDED}",
            "SMP v1 trains in BF16 only with sharded data parallelism",
            f"Pass a {_SHARDED} of at least 2, or leave bf16 out",
        )
    if given.get("fp16") is True:
        yield (
            "bf16",
            "both bf16=True and fp16=True",
            "a model is trained in only one of the two formats",
            "Keep one of them",
        )


def _sharded(given: Given) -> Rule:
    """Yield a fault if sharded data parallelism is combined with a pipeline.

    Tensor parallelism can be combined with sharded data parallelism since v1.15. Source: Developer
    Guide.
    """
    degree = _valid_value(given, _SHARDED)
    if degree is None or degree == 1:
        return
    for name in ("partitions", _STAGES):
        if (_valid_value(given, name) or 1) > 1:
            yield (
                _SHARDED,
                f"{_SHARDED}={degree} with {name}={given[name]}",
                "sharded data parallelism does not work with a pipeline",
                f"Pass {name}=1, or leave {_SHARDED} out",
            )


def _sharded_twice(given: Given) -> Rule:
    """Yield a fault if `shard_optimizer_state` is on with sharded data parallelism.

    Sharded data parallelism already shards the optimizer's state.

    Source: Developer Guide.
    """
    degree = _valid_value(given, _SHARDED)
    if degree is None or degree == 1:
        return
    if given.get("shard_optimizer_state") is True:
        yield (
            "shard_optimizer_state",
            f"{_SHARDED}={degree} with shard_optimizer_state=True",
            "sharded data parallelism shards the optimizer's state itself",
            "Leave shard_optimizer_state out",
        )


def _tensor_parallel(given: Given) -> Rule:
    """Yield a fault if `tensor_parallel_degree` is above 1 without `ddp`.

    Source: SDK documentation.
    """
    degree = _valid_value(given, _TENSOR)
    if degree and degree > 1 and given.get("ddp", False) is False:
        yield (
            _TENSOR,
            f"{_TENSOR}={degree} without ddp=True",
            "SMP splits tensors over ranks only together with DistributedDataParallel",
            "Pass ddp=True",
        )


def _context_parallel(given: Given) -> Rule:
    """Yield a fault if `context_parallel_degree` is above `hybrid_shard_degree`.

    A `hybrid_shard_degree` of 0 (the script decides) allows any value.

    Source: reference of SMP v2.
    """
    context = _valid_value(given, "context_parallel_degree")
    shards = _valid_value(given, "hybrid_shard_degree", default=0)
    if context and shards and context > shards:
        yield (
            "context_parallel_degree",
            f"context_parallel_degree={context} with hybrid_shard_degree={shards}",
            "a sequence is split over the ranks of one sharding group",
            f"Pass a context_parallel_degree of {_from_to(1, shards)},"
            f" or a hybrid_shard_degree of at least {context}",
        )


def _expert_parallel(given: Given) -> Rule:
    """Yield a fault if expert parallelism is combined with tensor parallelism.

    Source: Developer Guide, Expert parallelism, which calls them currently not compatible.
    """
    experts, tensors = _valid_value(given, "expert_parallel_degree"), _valid_value(given, _TENSOR)
    if experts and tensors and experts > 1 and tensors > 1:
        yield (
            "expert_parallel_degree",
            f"expert_parallel_degree={experts} with {_TENSOR}={tensors}",
            "SMP v2 does not split both experts and tensors",
            "Keep one of them",
        )


_RULES: Final = {
    1: (
        _one_name_for_stages,
        _default_partition,
        _old_name,
        _data_parallel,
        _half_precision,
        _sharded,
        _sharded_twice,
        _tensor_parallel,
    ),
    2: (_context_parallel, _expert_parallel),
    None: (),
}
_SMDIST_RULES: Final = (
    _one_name_for_stages,
    _default_partition,
    _data_parallel,
    _half_precision,
    _sharded_twice,
)


def _valid_value(given: Given, name: str, *, default: int = 1) -> int | None:
    """Return the value of a parameter: `default` if it is missing, None if it is invalid."""
    value: int = given.get(name, default)
    return value if {**V1, **V2}[name].is_valid(value) else None


def _from_to(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
