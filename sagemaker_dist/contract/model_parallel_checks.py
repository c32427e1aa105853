# SPDX-License-Identifier: Apache-2.0
"""Checks of `ModelParallel`'s options that need no other facts, such as the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.ranges import MOST_BYTES, size_in_bytes
from sagemaker_dist.contract.schedule_limits import (
    AUTO,
    PIPELINES,
    SPLIT_BACKWARD,
    microbatch_faults,
    pipeline_faults,
)
from sagemaker_dist.contract.smp.keys import V1, Key
from sagemaker_dist.errors import OptionError, closest

Faults = Iterator[OptionError]
Unchecked = Any  # a ModelParallel before its checks: values may have any type
SHARDINGS: Final = ("none", "optimizer", "full", AUTO)
REDUCTIONS: Final = (AUTO, "step", "microbatch")
SEARCHED: Final = ("1f1b", "interleaved_1f1b", "zero_bubble", "zero_bubble_v")  # with shards
_SEEDS: Final = 1 << 63  # torch accepts 64 bits, but not every reader of JSON more than 63
_MOST_RANKS: Final = 1 << 20


def _counts(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST_RANKS


def _is_count_or_auto(value: object) -> bool:
    return value == AUTO or _counts(value)


def _is_clip(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")  # type: ignore[operator]


_COUNT: Final = Key(
    is_valid=_counts,
    why=f"it is a number of at least 1 and at most {_MOST_RANKS}",
    hint=f"Pass an integer from 1 to {_MOST_RANKS}",
)
_COUNT_OR_AUTO: Final = Key(
    is_valid=_is_count_or_auto,
    why="it is a number, or 'auto' for the planner's choice",
    hint=f"Pass an integer from 1 to {_MOST_RANKS}, or 'auto'",
)
_SWITCH: Final = V1["auto_partition"]
_KEYS: Final[Mapping[str, Key]] = {
    "pipeline_parallel_degree": _COUNT_OR_AUTO,
    "tensor_parallel_degree": _COUNT,
    "sequence_parallel": _SWITCH,
    "microbatches": _COUNT_OR_AUTO,
    "pipeline": Key(
        is_valid=lambda value: value in [AUTO, *PIPELINES],
        why="no such schedule exists",
        choices=(AUTO, *PIPELINES),
    ),
    "active_microbatches": _COUNT,
    "virtual_stages": _COUNT,
    "placement_strategy": V1["placement_strategy"],
    "optimize": V1["optimize"],
    "memory_weight": V1["memory_weight"],
    "auto_partition": _SWITCH,
    "default_partition": V1["default_partition"],
    "plan": Key(
        is_valid=lambda value: isinstance(value, str) and bool(value),
        why="it must be the path of a file",
        hint="Pass the path of a saved plan, relative to the directory of the script",
    ),
    "device_memory": Key(
        is_valid=lambda value: size_in_bytes(value) is not None,
        why=f"it must be a number of bytes from 1 to {MOST_BYTES}, or text such as '16GiB'",
        hint="Pass a number of bytes, or a size such as '16GiB'",
    ),
    "sharding": Key(
        is_valid=lambda value: value in SHARDINGS,
        why="no such kind of sharding exists",
        choices=SHARDINGS,
    ),
    "shard_degree": _COUNT,
    "gradient_reduction": Key(
        is_valid=lambda value: value in REDUCTIONS,
        why="no such time of reduction exists",
        choices=REDUCTIONS,
    ),
    "gradient_clipping": Key(
        is_valid=_is_clip,
        why="it is the largest allowed norm, which must be above 0 and finite",
        hint="Pass a finite number above 0, or leave it out",
    ),
    "bf16": _SWITCH,
    "fp16": _SWITCH,
    "offload_activations": _SWITCH,
    "activation_loading_horizon": _COUNT,
    "offload_optimizer": _SWITCH,
    "global_batch_size": _COUNT,
    "seed": Key(
        is_valid=lambda value: type(value) is int and 0 <= value < _SEEDS,
        why="a seed must be an integer of 63 bits",
        hint="Pass an integer from 0 to 2**63 - 1",
    ),
    "engine": Key(
        is_valid=lambda value: isinstance(value, DataParallel),
        why="it must be a DataParallel, the options of ranks and connections",
        hint="Pass DataParallel(...)",
    ),
}
_NOT_SEARCHED: Final = (
    *("active_microbatches", "optimize", "memory_weight"),
    *("auto_partition", "default_partition", "offload_activations", "offload_optimizer"),
)
_OF_PLAN: Final = (  # options that a saved plan sets
    *("pipeline", "active_microbatches", "virtual_stages", "optimize", "memory_weight"),
    *("auto_partition", "default_partition", "device_memory"),
)


def option_faults(options: Unchecked) -> Faults:
    """Yield the faults of a `ModelParallel`: wrong values first, then options that exclude others.

    A combination is checked only if each of its values is valid.
    """
    faults = [
        _value_fault(name, value, key)
        for name, key in _KEYS.items()
        if not _is_valid(options, name, value := getattr(options, name), key)
    ]
    yield from faults
    wrong = {name for fault in faults for name in fault.about}
    for rule, names in _RULES.items():
        if wrong.isdisjoint(names):
            yield from rule(options)


def _is_valid(options: Unchecked, name: str, value: object, key: Key) -> bool:
    return (value is None and _default(options, name) is None) or key.is_valid(value)


def _value_fault(name: str, value: object, key: Key) -> OptionError:
    hint = closest(str(value), key.choices) if key.choices else key.hint
    return OptionError(f"{name} is {value!r}", key.why, hint, about=name)


def _schedule(options: Unchecked) -> Faults:
    yield from pipeline_faults(
        options.pipeline,
        virtual_stages=options.virtual_stages,
        active_microbatches=options.active_microbatches,
    )


def _microbatches(options: Unchecked) -> Faults:
    degree, number = options.pipeline_parallel_degree, options.microbatches
    if isinstance(degree, int) and isinstance(number, int):
        yield from microbatch_faults(options.pipeline, degree=degree, microbatches=number)


def _balance(options: Unchecked) -> Faults:
    if options.optimize is not None and options.memory_weight is not None:
        yield OptionError(
            f"optimize is {options.optimize!r} and memory_weight is {options.memory_weight!r}",
            "both set the quantity by which stages are balanced",
            "Leave one of them out",
            about="optimize",
            kind="conflict",
        )


def _placing(options: Unchecked) -> Faults:
    """Yield a fault for each option that has no effect with the value of `auto_partition`.

    `default_partition` has no effect if `auto_partition` is True. `optimize` and `memory_weight`
    have no effect if `auto_partition` is False.
    """
    if options.auto_partition and options.default_partition is not None:
        yield OptionError(
            f"default_partition is {options.default_partition} with auto_partition=True",
            "the planner assigns all layers to stages",
            "Leave default_partition out, or pass auto_partition=False",
            about="default_partition",
            kind="conflict",
        )
    for name in ("optimize", "memory_weight"):
        value = getattr(options, name)
        if not options.auto_partition and value is not None:
            yield OptionError(
                f"{name} is {value!r} with auto_partition=False",
                "the script assigns all layers to stages",
                f"Leave {name} out, or pass auto_partition=True",
                about=name,
                kind="conflict",
            )


def _default_partition(options: Unchecked) -> Faults:
    degree, stage = options.pipeline_parallel_degree, options.default_partition
    stages = degree * (options.virtual_stages or 1) if isinstance(degree, int) else None
    schedule = PIPELINES.get(options.pipeline)
    has_one_each = schedule is not None and schedule.most_virtual_stages == 1
    is_known = options.virtual_stages is not None or has_one_each
    if stages is not None and stage is not None and is_known and stage >= stages:
        yield OptionError(
            f"default_partition is {stage}",
            f"there are {stages} stages, numbered from 0",
            f"Pass {f'0 to {stages - 1}' if stages > 1 else '0'}",
            about="default_partition",
        )


def _sharding(options: Unchecked) -> Faults:
    if options.sharding != "none":
        return
    if options.shard_degree is not None:
        yield OptionError(
            f"shard_degree is {options.shard_degree} with sharding='none'",
            "without sharding, each replica stores all its state, so the option has no effect",
            "Pass sharding='optimizer' or sharding='full', or leave shard_degree out",
            about="shard_degree",
            kind="conflict",
        )


def _reduction(options: Unchecked) -> Faults:
    if options.gradient_reduction == AUTO:
        return
    what = f"gradient_reduction is {options.gradient_reduction!r} with"
    if options.sharding == "none":
        yield OptionError(
            f"{what} sharding='none'",
            "without sharding, gradients of replicas are summed once per step",
            "Pass sharding='optimizer' or sharding='full', or leave gradient_reduction out",
            about="gradient_reduction",
            kind="conflict",
        )
    if options.gradient_reduction == "microbatch" and options.pipeline in SPLIT_BACKWARD:
        yield OptionError(
            f"{what} pipeline={options.pipeline!r}",
            "this schedule computes gradients of weights apart from backward passes",
            "Pass another schedule, such as pipeline='1f1b', or leave gradient_reduction out",
            about="gradient_reduction",
            kind="conflict",
        )


def _searched_shards(options: Unchecked) -> Faults:
    """Yield a fault for each option that the search for shards does not know."""
    if options.sharding != AUTO or options.plan is not None:
        return
    allowed: dict[str, tuple[object, ...]] = {
        name: (_default(options, name),) for name in _NOT_SEARCHED
    }
    allowed["pipeline"] = (AUTO, *SEARCHED)
    for name, values in allowed.items():
        value = getattr(options, name)
        if value not in values:
            yield OptionError(
                f"{name} is {value!r} with sharding='auto'",
                "the planner does not search shards for this",
                f"Leave {name} out, or pass sharding='none', 'optimizer' or 'full'",
                about=name,
                kind="conflict",
            )


def _precision(options: Unchecked) -> Faults:
    if options.bf16 and options.fp16:
        yield OptionError(
            "both bf16 and fp16 are True",
            "a model computes in one of the two dtypes",
            "Leave out bf16 or fp16",
            about="bf16",
            kind="conflict",
        )


def _offload(options: Unchecked) -> Faults:
    horizon = options.activation_loading_horizon
    if horizon is not None and not options.offload_activations:
        yield OptionError(
            f"activation_loading_horizon is {horizon} with offload_activations=False",
            "activations stay on the device, so the option has no effect",
            "Pass offload_activations=True, or leave activation_loading_horizon out",
            about="activation_loading_horizon",
            kind="conflict",
        )


def _sequences(options: Unchecked) -> Faults:
    if options.sequence_parallel and options.tensor_parallel_degree == 1:
        yield OptionError(
            "sequence_parallel is True with tensor_parallel_degree=1",
            "sequences are split over the ranks that share layers, and layers are whole",
            "Pass tensor_parallel_degree=2 or more, or leave sequence_parallel out",
            about="sequence_parallel",
            kind="conflict",
        )


def _plan(options: Unchecked) -> Faults:
    if options.plan is None:
        return
    for name in _OF_PLAN:
        value = getattr(options, name)
        if value != _default(options, name):
            yield OptionError(
                f"{name} is {value!r} together with plan={options.plan!r}",
                "the plan already sets this option",
                f"Leave {name} out, or leave plan out",
                about=name,
                kind="conflict",
            )


def _default(options: Unchecked, name: str) -> object:
    return type(options).__dataclass_fields__[name].default


_RULES: Final = {  # each rule, and the options that it reads
    _schedule: ("pipeline", "virtual_stages", "active_microbatches"),
    _microbatches: ("pipeline", "pipeline_parallel_degree", "microbatches"),
    _balance: ("optimize", "memory_weight"),
    _placing: ("optimize", "memory_weight", "auto_partition", "default_partition"),
    _default_partition: (
        *("pipeline_parallel_degree", "virtual_stages", "pipeline", "default_partition"),
    ),
    _sharding: ("sharding", "shard_degree"),
    _reduction: ("sharding", "gradient_reduction", "pipeline"),
    _searched_shards: ("sharding", "plan", "pipeline", *_NOT_SEARCHED),
    _precision: ("bf16", "fp16"),
    _offload: ("offload_activations", "activation_loading_horizon"),
    _sequences: ("sequence_parallel", "tensor_parallel_degree"),
    _plan: ("plan", *_OF_PLAN),
}
