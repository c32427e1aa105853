# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the parameters of SMP: unknown keys, bad values, keys that exclude each other.

A rule says which page or program it is from; the pages are named in `keys`, the SDK is SageMaker
SDK 2.257.7, fw_utils.validate_mp_config (all read 2026-11-21). A rule says nothing about a value
that is wrong by itself: that is told already.
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
    parameters: Given, *, version: int | None, where: str, is_ours: bool = False
) -> Faults:
    """What is wrong with `parameters` of an enabled `modelparallel` section.

    A value that only a SageMaker pipeline knows has no place here: leave its key out of
    `parameters`. (SageMaker's SDK cannot send such a value in them either.)

    Args:
        parameters: The keys as a dict; read them first where the user names a JSON file.
        version: 1 if mpi starts the library, 2 if torch_distributed does. None if that is not
            known: then the keys of both are valid, and rules between keys are not checked.
        where: What messages call the place of the parameters.
        is_ours: Our own runtime reads them, as of version 1: what SageMaker's SDK alone minds is
            no fault, nor is a pipeline with shards.
    """
    if not parameters and not is_ours:
        yield OptionError(
            f"{where} is empty",
            "SageMaker's SDK sends nothing then, and the library does not learn of it",
            f"Name {_FIRST[version]}",
        )
    for name, value in parameters.items():
        yield from _key_faults(name, value, version, where)
    for rule in _OURS if is_ours else _RULES[version]:
        for what, why, mend in rule(parameters):
            yield OptionError(f"{where} has {what}", why, mend)


def _key_faults(name: str, value: object, version: int | None, where: str) -> Faults:
    other = 2 if version == 1 else 1
    if name in KEYS[version]:
        yield from KEYS[version][name].faults(name, value, where)
    elif name in KEYS[other]:
        yield OptionError(
            f"{where} has the key {name!r}",
            f"it is a key of SMP v{other}, which {_STARTER[other]} starts",
            f"Leave it out, or start the job with {_STARTER[other]}",
        )
    else:
        yield OptionError(
            f"{where} has the key {name!r}",
            "no such key exists",
            closest(str(name), KEYS[version]),
        )


Rule = Iterator[tuple[str, str, str]]  # what, why, mend


def _one_name_for_stages(given: Given) -> Rule:
    """SDK documentation: `partitions` became `pipeline_parallel_degree` with v1.6 for PyTorch."""
    if "partitions" in given and _STAGES in given:
        yield (
            f"both 'partitions' and {_STAGES!r}",
            "they are two names of one number",
            "Keep one of them",
        )


def _default_partition(given: Given) -> Rule:
    """SDK."""
    name = "default_partition"
    if given.get("auto_partition") is False and name not in given:
        yield (
            "auto_partition=False without default_partition",
            "what the script places nowhere goes to that partition",
            "Name default_partition",
        )
    stages = "partitions" if "partitions" in given else _STAGES
    partitions, default = _sound(given, stages), _sound(given, name)
    is_known = stages in given and name in given
    if partitions and is_known and default is not None and default >= partitions:
        yield (
            f"{name}={default} with {stages}={partitions}",
            "partitions are numbered from 0",
            f"Pass {_from_to(0, partitions - 1)}",
        )


def _old_name(given: Given) -> Rule:
    """SDK; it compares with `partitions` alone and ends in a KeyError without it."""
    name = "default_partition"
    if name in given and "partitions" not in given:
        yield (
            f"{name}={given[name]!r} without partitions",
            "SageMaker's SDK compares the two, and fails where it finds no partitions",
            f"Name the number of stages as partitions, not as {_STAGES}",
        )


def _data_parallel(given: Given) -> Rule:
    """SDK; it asks that `ddp` is named, not that it is true."""
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in given and "ddp" not in given:
            yield (f"{name}={given[name]!r} without ddp", "it is an option of ddp", "Pass ddp=True")
    if given.get("ddp") is True and given.get("horovod") is True:
        yield (
            "both ddp=True and horovod=True",
            "gradients are averaged by one of them",
            "Pass ddp for PyTorch or horovod for TensorFlow",
        )


def _half_precision(given: Given) -> Rule:
    """Developer Guide: BF16 only with sharded data parallelism, and instead of FP16."""
    if given.get("bf16") is not True:
        return
    if _sound(given, _SHARDED) == 1:
        yield (
            f"bf16=True without {_SHARDED}",
            "SMP v1 trains in BF16 only where data parallelism is sharded",
            f"Pass a {_SHARDED} of at least 2, or leave bf16 out",
        )
    if given.get("fp16") is True:
        yield ("both bf16=True and fp16=True", "a model trains in one of them", "Keep one of them")


def _sharded(given: Given) -> Rule:
    """Developer Guide: not with pipelines; with tensors since v1.15."""
    degree = _sound(given, _SHARDED)
    if degree is None or degree == 1:
        return
    for name in ("partitions", _STAGES):
        if (_sound(given, name) or 1) > 1:
            yield (
                f"{_SHARDED}={degree} with {name}={given[name]}",
                "sharded data parallelism does not work with a pipeline",
                f"Pass {name}=1, or leave {_SHARDED} out",
            )


def _sharded_twice(given: Given) -> Rule:
    """Developer Guide: sharded data parallelism shards the optimizer's state, too."""
    degree = _sound(given, _SHARDED)
    if degree is None or degree == 1:
        return
    if given.get("shard_optimizer_state") is True:
        yield (
            f"{_SHARDED}={degree} with shard_optimizer_state=True",
            "sharded data parallelism shards the optimizer's state itself",
            "Leave shard_optimizer_state out",
        )


def _tensor_parallel(given: Given) -> Rule:
    """SDK documentation: a `tensor_parallel_degree` above 1 needs `ddp`."""
    degree = _sound(given, _TENSOR)
    if degree and degree > 1 and given.get("ddp", False) is False:
        yield (
            f"{_TENSOR}={degree} without ddp=True",
            "tensors are split among ranks of ddp",
            "Pass ddp=True",
        )


def _context_parallel(given: Given) -> Rule:
    """V2 reference: at most `hybrid_shard_degree`, of which 0 is whatever fits."""
    context = _sound(given, "context_parallel_degree")
    shards = _sound(given, "hybrid_shard_degree", default=0)
    if context and shards and context > shards:
        yield (
            f"context_parallel_degree={context} with hybrid_shard_degree={shards}",
            "a sequence is split among ranks of one sharding group",
            f"Pass a context_parallel_degree of {_from_to(1, shards)},"
            f" or a hybrid_shard_degree of at least {context}",
        )


def _expert_parallel(given: Given) -> Rule:
    """Developer Guide, Expert parallelism: currently not compatible with tensor parallelism."""
    experts, tensors = _sound(given, "expert_parallel_degree"), _sound(given, _TENSOR)
    if experts and tensors and experts > 1 and tensors > 1:
        yield (
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
_OURS: Final = (
    _one_name_for_stages,
    _default_partition,
    _data_parallel,
    _half_precision,
    _sharded_twice,
)


def _sound(given: Given, name: str, *, default: int = 1) -> int | None:
    """A number that is valid by itself, what AWS takes if it is left out, or None."""
    value: int = given.get(name, default)
    return value if {**V1, **V2}[name].holds(value) else None


def _from_to(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
