# SPDX-License-Identifier: Apache-2.0
"""Checks of SMP parameters: unknown keys, wrong values, keys that exclude each other.

Each rule names its source: pages are listed in `keys`; "SDK" is SageMaker SDK 2.257.7,
fw_utils.validate_mp_config (all read 2026-11-21). A rule skips values that are wrong by
themselves, because they are reported already.
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
_FIRST: Final = {  # a key to begin with
    1: repr(_STAGES),
    2: "'hybrid_shard_degree'",
    None: f"{_STAGES!r} for SMP v1 or 'hybrid_shard_degree' for SMP v2",
}


def smp_faults(
    parameters: Given, *, version: int | None, where: str, for_smdist: bool = False
) -> Faults:
    """Yield the faults of the `parameters` of an enabled `modelparallel` section.

    Pipeline variables are not allowed: leave their keys out of `parameters`. (SageMaker's SDK
    cannot send them in it either.)

    Args:
        parameters: The keys as a dict; if the user passes a JSON file, read it first.
        version: 1 if mpi starts the library, 2 if torch_distributed does. None if unknown:
            then the keys of both are valid, and rules between keys are not checked.
        where: Place of the parameters in messages.
        for_smdist: The smdist runtime reads them as version 1: rules of SageMaker's SDK alone
            are skipped, and a pipeline with shards is allowed.
    """
    if not parameters and not for_smdist:
        yield OptionError(
            f"{where} is empty",
            "SageMaker's SDK then sends nothing to the library",
            f"Add {_FIRST[version]}",
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
            kind="unknown",
        )
    else:
        yield OptionError(
            f"{where} has the key {name!r}",
            "no such key exists",
            closest(str(name), KEYS[version]),
            about=str(name),
            kind="unknown",
        )


Rule = Iterator[tuple[str, str, str, str]]  # key, what, why, hint


def _one_name_for_stages(given: Given) -> Rule:
    """SDK documentation: `partitions` became `pipeline_parallel_degree` with v1.6 for PyTorch."""
    if "partitions" in given and _STAGES in given:
        yield (
            _STAGES,
            f"both 'partitions' and {_STAGES!r}",
            "they are two names of one number",
            "Keep one of them",
        )


def _default_partition(given: Given) -> Rule:
    """Source: SDK."""
    name = "default_partition"
    if given.get("auto_partition") is False and name not in given:
        yield (
            "auto_partition",
            "auto_partition=False without default_partition",
            "layers that the script does not assign go to that partition",
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
    """Source: SDK; it compares with `partitions` alone and ends in a KeyError without it."""
    name = "default_partition"
    if name in given and "partitions" not in given:
        yield (
            name,
            f"{name}={given[name]!r} without partitions",
            "SageMaker's SDK compares the two, and fails without partitions",
            f"Pass the number of stages as partitions, not as {_STAGES}",
        )


def _data_parallel(given: Given) -> Rule:
    """Source: SDK; it requires that `ddp` is named, not that it is true."""
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in given and "ddp" not in given:
            yield (
                name,
                f"{name}={given[name]!r} without ddp",
                "it is an option of ddp",
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
    """Source: Developer Guide: BF16 only with sharded data parallelism, and instead of FP16."""
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
            "a model trains in one of them",
            "Keep one of them",
        )


def _sharded(given: Given) -> Rule:
    """Source: Developer Guide: not with pipelines; with tensors since v1.15."""
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
    """Source: Developer Guide: sharded data parallelism shards the optimizer's state, too."""
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
    """Source: SDK documentation: a `tensor_parallel_degree` above 1 needs `ddp`."""
    degree = _valid_value(given, _TENSOR)
    if degree and degree > 1 and given.get("ddp", False) is False:
        yield (
            _TENSOR,
            f"{_TENSOR}={degree} without ddp=True",
            "tensors are split among the ranks of ddp",
            "Pass ddp=True",
        )


def _context_parallel(given: Given) -> Rule:
    """Source: V2 reference: at most `hybrid_shard_degree`; 0 there means any."""
    context = _valid_value(given, "context_parallel_degree")
    shards = _valid_value(given, "hybrid_shard_degree", default=0)
    if context and shards and context > shards:
        yield (
            "context_parallel_degree",
            f"context_parallel_degree={context} with hybrid_shard_degree={shards}",
            "a sequence is split among ranks of one sharding group",
            f"Pass a context_parallel_degree of {_from_to(1, shards)},"
            f" or a hybrid_shard_degree of at least {context}",
        )


def _expert_parallel(given: Given) -> Rule:
    """Source: Developer Guide, Expert parallelism: currently not compatible with tensor
    parallelism.
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
    """Return a valid value, AWS's default if it is left out, or None for an invalid value."""
    value: int = given.get(name, default)
    return value if {**V1, **V2}[name].holds(value) else None


def _from_to(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
