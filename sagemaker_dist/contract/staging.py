# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the options of `ModelParallel`, whatever the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.contract.pipelines import AUTO, PIPELINES, microbatch_faults, pipeline_faults
from sagemaker_dist.contract.sizes import MOST_BYTES, size_of
from sagemaker_dist.contract.smp.keys import V1, Key
from sagemaker_dist.errors import OptionError, closest

if TYPE_CHECKING:
    from sagemaker_dist.contract.model_parallel import ModelParallel

Faults = Iterator[OptionError]
SHARDINGS: Final = ("none", "optimizer", "full")
_SEEDS: Final = 1 << 63  # torch takes 64 bits; JSON's readers agree on 63
_MOST_RANKS: Final = 1 << 20


def _counts(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST_RANKS


def _is_count_or_auto(value: object) -> bool:
    return value == AUTO or _counts(value)


def _is_clip(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")  # type: ignore[operator]


_COUNT: Final = Key(
    holds=_counts, why="it counts what is there", mend=f"Pass an integer from 1 to {_MOST_RANKS}"
)
_COUNT_OR_AUTO: Final = Key(
    holds=_is_count_or_auto,
    why="it is a number, or the planner's to find",
    mend=f"Pass an integer from 1 to {_MOST_RANKS}, or 'auto'",
)
_SWITCH: Final = V1["auto_partition"]
_KEYS: Final[Mapping[str, Key]] = {
    "pipeline_parallel_degree": _COUNT_OR_AUTO,
    "microbatches": _COUNT_OR_AUTO,
    "pipeline": Key(
        holds=lambda value: value in [AUTO, *PIPELINES],
        why="no such schedule exists",
        words=(AUTO, *PIPELINES),
    ),
    "active_microbatches": _COUNT,
    "virtual_stages": _COUNT,
    "placement_strategy": V1["placement_strategy"],
    "optimize": V1["optimize"],
    "memory_weight": V1["memory_weight"],
    "auto_partition": _SWITCH,
    "default_partition": V1["default_partition"],
    "plan": Key(
        holds=lambda value: isinstance(value, str) and bool(value),
        why="it is the path of a file",
        mend="Pass the path of a saved plan, relative to the directory of the script",
    ),
    "device_memory": Key(
        holds=lambda value: size_of(value) is not None,
        why=f"it is a number of bytes up to {MOST_BYTES}, or text such as '16GiB'",
        mend="Pass one of these",
    ),
    "sharding": Key(
        holds=lambda value: value in SHARDINGS, why="nothing else is sharded", words=SHARDINGS
    ),
    "shard_degree": _COUNT,
    "gradient_clipping": Key(
        holds=_is_clip, why="it is a norm", mend="Pass a finite number above 0, or leave it out"
    ),
    "bf16": _SWITCH,
    "global_batch_size": _COUNT,
    "seed": Key(
        holds=lambda value: type(value) is int and 0 <= value < _SEEDS,
        why="random numbers start from it",
        mend="Pass an integer from 0 to 2**63 - 1",
    ),
    "engine": Key(
        holds=lambda value: isinstance(value, DataParallel),
        why="it holds the options of the ranks and their connections",
        mend="Pass DataParallel(...)",
    ),
}
_OF_PLAN: Final = (  # what a plan has decided
    *("pipeline", "active_microbatches", "virtual_stages", "optimize", "memory_weight"),
    *("auto_partition", "default_partition", "device_memory"),
)


def option_faults(options: ModelParallel) -> Faults:
    """Values that are wrong by themselves; if there are none, those that exclude each other."""
    faults = [fault for name, key in _KEYS.items() for fault in _value_faults(options, name, key)]
    yield from faults
    wrong = {name for name in _KEYS for fault in faults if fault.what.startswith(f"{name} is ")}
    for rule, names in _RULES.items():
        if not wrong & set(names):
            yield from rule(options)


def _value_faults(options: ModelParallel, name: str, key: Key) -> Faults:
    value: Any = getattr(options, name)
    if value is None and _default(options, name) is None:
        return
    if not key.holds(value):
        mend = closest(str(value), key.words) if key.words else key.mend
        yield OptionError(f"{name} is {value!r}", key.why, mend)


def _schedule(options: ModelParallel) -> Faults:
    yield from pipeline_faults(
        options.pipeline,
        virtual_stages=options.virtual_stages,
        active_microbatches=options.active_microbatches,
    )


def _microbatches(options: ModelParallel) -> Faults:
    degree, number = options.pipeline_parallel_degree, options.microbatches
    if isinstance(degree, int) and isinstance(number, int):
        yield from microbatch_faults(options.pipeline, degree=degree, microbatches=number)


def _balance(options: ModelParallel) -> Faults:
    if options.optimize is not None and options.memory_weight is not None:
        yield OptionError(
            f"optimize is {options.optimize!r} and memory_weight is {options.memory_weight!r}",
            "both say what stages are balanced by",
            "Leave one of them out",
        )


def _placing(options: ModelParallel) -> Faults:
    """One says where layers go, the other lets the planner do it."""
    if options.auto_partition and options.default_partition is not None:
        yield OptionError(
            f"default_partition is {options.default_partition} with auto_partition=True",
            "the planner places all layers",
            "Leave default_partition out, or pass auto_partition=False",
        )
    for name in ("optimize", "memory_weight"):
        value = getattr(options, name)
        if not options.auto_partition and value is not None:
            yield OptionError(
                f"{name} is {value!r} with auto_partition=False",
                "the script places all layers",
                f"Leave {name} out, or pass auto_partition=True",
            )


def _default_partition(options: ModelParallel) -> Faults:
    degree, stage = options.pipeline_parallel_degree, options.default_partition
    stages = degree * (options.virtual_stages or 1) if isinstance(degree, int) else None
    is_known = options.virtual_stages is not None or options.pipeline in ("simple", "interleaved")
    if stages is not None and stage is not None and is_known and stage >= stages:
        yield OptionError(
            f"default_partition is {stage}",
            f"there are {stages} stages, from 0",
            f"Pass {f'0 to {stages - 1}' if stages > 1 else '0'}",
        )


def _sharding(options: ModelParallel) -> Faults:
    if options.sharding != "none":
        return
    if options.shard_degree is not None:
        yield OptionError(
            f"shard_degree is {options.shard_degree} with sharding='none'",
            "no replicas share anything",
            "Pass sharding='optimizer' or sharding='full', or leave shard_degree out",
        )
    if options.bf16:
        yield OptionError(
            "bf16 is True with sharding='none'",
            "weights are cast as shards are gathered",
            "Use torch.autocast(device, torch.bfloat16) in the step, or pass sharding='full'",
        )


def _plan(options: ModelParallel) -> Faults:
    if options.plan is None:
        return
    for name in _OF_PLAN:
        value = getattr(options, name)
        if value != _default(options, name):
            yield OptionError(
                f"{name} is {value!r} beside plan={options.plan!r}",
                "the plan has decided it",
                f"Leave {name} out, or leave plan out",
            )


def _default(options: ModelParallel, name: str) -> object:
    return type(options).__dataclass_fields__[name].default


_RULES: Final = {  # and the options that each is about
    _schedule: ("pipeline", "virtual_stages", "active_microbatches"),
    _microbatches: ("pipeline", "pipeline_parallel_degree", "microbatches"),
    _balance: ("optimize", "memory_weight"),
    _placing: ("optimize", "memory_weight", "auto_partition", "default_partition"),
    _default_partition: (
        *("pipeline_parallel_degree", "virtual_stages", "pipeline", "default_partition"),
    ),
    _sharding: ("sharding", "shard_degree", "bf16"),
    _plan: ("plan", *_OF_PLAN),
}
