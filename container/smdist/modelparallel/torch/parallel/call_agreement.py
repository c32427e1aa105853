# SPDX-License-Identifier: Apache-2.0
"""Checks, before a call of the model, that all ranks of a pipeline will run the same computation.

Recordings. A forward function may run other operations for another sequence length, for a smaller
batch or in evaluation mode. So the forward pass is recorded once for each such kind of call. Units
(modules that are never split) stay on the stages where they were in the first step.

Comparison. If one rank of a pipeline had another batch, it would send data that the next rank does
not expect. Then a rank would wait forever, or the model would train on wrong numbers. So each rank
sends a digest of the coming call, of 8 bytes. Only if digests differ do ranks exchange details.
Before a training step all ranks of the world take part, since an error on one rank stops all
replicas.

Frozen parameters. After the model is split, `model.named_parameters()` has only the parameters of
this rank. So code that freezes parameters in a loop changes only this rank's. But each rank records
the whole model, and so needs `requires_grad` of all parameters. `sync_frozen` copies a change of
`requires_grad` from the ranks that hold the parameter to the other ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, place, placed_units
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.session_agreement import DisagreementError
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import Captured, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.executor.failure_broadcast import Alarm
from smdist.modelparallel.torch.measure import with_slices
from smdist.modelparallel.torch.parallel.model_state import PartitionedModel
from smdist.modelparallel.torch.parallel.step_function import example_of
from smdist.modelparallel.torch.program.pytree import described
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.session.rank_team import error_text, raise_first

BEFORE: Final = "the step, before the model's call"
_EMPTY_MODULE = nn.Module()
# Ranks that share layers have one smp.rdp_rank() but several smp.dp_rank(); else both are equal.
_SAME_DATA: Final = (
    "Create the DistributedSampler with num_replicas=smp.rdp_size() and rank=smp.rdp_rank(), and"
    " seed random transforms of the data set with smp.rdp_rank()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedCall:
    """Recorded forward pass of the model for the arguments of its next call.

    Attributes:
        key: Shapes, dtypes and modes of the call, under which the recording is cached.
        captured: Recorded forward pass.
        placement: Stage of each recorded operation.
        text: Description of arguments, modes and frozen parameters, which ranks compare.
        has_gradients: True if gradients are enabled at the call.
    """

    key: Hashable
    captured: Captured
    placement: Placement
    text: str
    has_gradients: bool


def find_capture(split: PartitionedModel, arguments: Arguments) -> CapturedCall:
    """Return the recorded forward pass for these arguments and the model's present modes.

    If there is no such recording yet, the forward pass is recorded now.

    Args:
        split: Model that is split into stages.
        arguments: Positional arguments and keyword arguments of the model's call.

    Raises:
        CaptureError: The forward pass cannot be recorded.
        OptionError: The model has other units (modules that are never split) than in its first
            step.
    """
    split.skeleton_sync.update()
    key = _key(split, arguments)
    if key not in split.captures:
        split.add_capture(key, _captured(split, example_of(arguments, split.skeleton)))
    captured, placement = split.use_capture(key)
    return CapturedCall(
        key=key, captured=captured, placement=placement, text=_call_text(split, arguments),
        has_gradients=torch.is_grad_enabled(),
    )  # fmt: skip


def _key(split: PartitionedModel, arguments: Arguments) -> Hashable:
    """Return the cache key of a call: shapes and dtypes of its arguments, and the model's modes.

    The key of the previous call is returned again, without a loop over all modules, if shapes,
    dtypes and modes are the same as in that call.
    """
    short = split.skeleton_sync.version, signature(_EMPTY_MODULE, arguments)
    if split.latest_signature is None or split.latest_signature[0] != short:
        split.latest_signature = short, signature(split.skeleton, arguments)
    return split.latest_signature[1]


def _call_text(split: PartitionedModel, arguments: Arguments) -> str:
    """Return a text for ranks to compare before a call: arguments, modes, frozen parameters."""
    mode = "in training" if split.skeleton.training else "in evaluation"
    grads = "with gradients" if torch.is_grad_enabled() else "without gradients"
    frozen = split.frozen()
    last = f", frozen: {', '.join(frozen)}" if frozen else ""
    return f"{described(arguments)} {mode} {grads}{last}"


def _captured(split: PartitionedModel, example: Any) -> tuple[Captured, Placement]:
    """Record the model's forward pass, and place the recorded operations on the stages.

    Args:
        split: Model that is split into stages.
        example: Arguments of the model's call: a tuple, or a dict by name.
    """
    plan = split.plan
    found = with_slices(capture(split.skeleton, example, opened=plan.opened))
    _check_units(split.captured.graph, found.graph)
    known = {node.name for node in found.graph.units}
    stage_of = {name: stage for name, stage in plan.stage_of.items() if name in known}
    placement = place(found.graph, stage_of, num_stages=len(plan.stages))
    return replace(found, example=None), placement


def _check_units(before: Graph, now: Graph) -> None:
    """Check that a new recording of the model has the same units as the first one.

    Units are modules that are never split; they must also have the same parameters.

    Args:
        before: Graph of the first recording.
        now: Graph of the new recording.

    Raises:
        OptionError: The units differ.
    """
    old = {unit.name: unit.parameters for unit in placed_units(before)}
    new = {unit.name: unit.parameters for unit in placed_units(now)}
    if old == new:
        return
    other = [name for name in old.keys() & new.keys() if old[name] != new[name]]
    parts = {
        "runs {} as well": new.keys() - old.keys(),
        "does not run {} any more": old.keys() - new.keys(),
        "has other parameters in {}": other,
    }
    changes = [text.format(_some(names)) for text, names in parts.items() if names]
    raise OptionError(
        f"{now.model} now {' and '.join(changes)}",
        "its stages were made for the modules that ran in the first step",
        "Change the model before its first step, or call smp.parallelize on the changed model",
        kind="changed",
    )


def _some(names: Collection[str]) -> str:
    """Return a text with up to three of the names, and the number of further names."""
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(map(repr, listed[:3])) + more


@contextmanager
def ending_all(groups: Groups, doing: str) -> Iterator[None]:
    """Surround a block that all ranks run: if it fails on one rank, all ranks raise an error.

    Args:
        groups: Process groups of the model.
        doing: Name of the work for the error message, such as "the sum of gradients".

    Raises:
        BaseException: The error of this rank.
        StepError: Another rank failed first; the error names that rank.
    """
    try:
        yield
    except BaseException as error:
        if session.current().size == 1:
            raise
        failure = Alarm(groups.of(Axis.MP)).error(error, doing, "the model")
        if failure.rank == groups.rank:
            raise
        raise failure from error


_FAULT = -1  # sent in place of a digest by a rank that has an error
_DIFFERENCES = {  # by kind, in the order in which they are reported: what differs, and the hint
    "inputs": ("other inputs", _SAME_DATA),
    "model": (
        "other settings of the model",
        "Call model.train() and model.eval() alike on all ranks of a pipeline, and freeze"
        " parameters of model.module alike on all ranks",
    ),
    "data": ("other data", _SAME_DATA),
}


class DifferenceError(DisagreementError):
    """Error on all ranks, because ranks of one pipeline called the model differently.

    The attribute `kind` is the difference: "inputs" for the shapes or dtypes of arguments, "model"
    for modes or frozen parameters, "data" for the values of arguments. For "data", `about` has the
    names of these arguments.
    """


def agree(
    groups: Groups,
    axis: Axis,
    descriptions: dict[str, str],
    fault: BaseException | None = None,
) -> None:
    """Check that the ranks of each pipeline will run the same call, and that no rank has an error.

    Args:
        groups: Process groups of the model.
        axis: Ranks that call this function: the world before a training step, else this pipeline.
        descriptions: Texts that describe the call of this rank, under the keys "inputs", "model"
            and "data". Equal calls have equal texts in every process.
        fault: Error that prevents this rank from running the call; None if there is none.

    Raises:
        DifferenceError: Ranks of a pipeline differ; raised on every rank of `axis`.
        DisagreementError: Another rank has an error.
        BaseException: `fault` itself, on its rank.
    """
    ranks = groups.members(axis)
    if len(ranks) == 1:
        if fault is not None:
            raise fault
        return
    mine = torch.tensor([_FAULT if fault is not None else _digest(descriptions)], dtype=torch.int64)
    every = [torch.empty_like(mine) for _ in ranks]
    with ending_all(groups, BEFORE):
        dist.all_gather(every, mine, group=groups.of(axis))
    digests = {rank: int(each.item()) for rank, each in zip(ranks, every, strict=True)}
    if _FAULT in digests.values() or _differing(groups, digests):
        _raise_difference(groups, axis, descriptions, fault)


def _differing(groups: Groups, values: dict[int, Any]) -> list[int]:
    """Find a pipeline whose ranks have different values.

    Args:
        groups: Process groups, with the ranks of each pipeline.
        values: Value of each rank that takes part, by world rank.

    Returns:
        World ranks of the pipeline's first rank and of a rank that differs from it; [] if the
        values are equal within each pipeline.
    """
    for pipeline in groups.replicas:
        for rank in pipeline:
            if rank in values and values[rank] != values[pipeline[0]]:
                return [pipeline[0], rank]
    return []


def _digest(descriptions: dict[str, str]) -> int:
    """Return a hash of the texts that describe a call: a non-negative integer of 7 bytes."""
    text = repr(sorted(descriptions.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _raise_difference(
    groups: Groups, axis: Axis, descriptions: dict[str, str], fault: BaseException | None
) -> None:
    """Exchange descriptions and errors between ranks, and raise the first error or difference.

    Args:
        groups: Process groups of the model.
        axis: Ranks that take part: the world or this pipeline.
        descriptions: Texts that describe the call of this rank, under the keys "inputs", "model"
            and "data".
        fault: Error of this rank; None if there is none.

    Raises:
        DifferenceError: Ranks of a pipeline have different descriptions.
        DisagreementError: Another rank has an error.
        BaseException: `fault` itself, on its rank.
    """
    ranks = groups.members(axis)
    text = None if fault is None else error_text(fault)
    with ending_all(groups, BEFORE):
        answers = all_gather_object((descriptions, text), groups.of(axis))
    if fault is not None:
        raise fault
    by_rank = dict(zip(ranks, answers, strict=True))
    raise_first({rank: text for rank, (_, text) in by_rank.items() if text is not None}, BEFORE)
    found = {rank: each for rank, (each, _) in by_rank.items()}
    first, other = _differing(groups, found)
    raise _difference((first, other), found[first], found[other])


def _difference(
    ranks: tuple[int, int], first: dict[str, str], other: dict[str, str]
) -> DifferenceError:
    """Return the error for two ranks of one pipeline that describe their calls differently.

    Args:
        ranks: World ranks of both.
        first, other: Texts that describe the call on the first and on the second rank, under the
            keys "inputs", "model" and "data".
    """
    kind = next(kind for kind in _DIFFERENCES if first.get(kind) != other.get(kind))
    about: tuple[str, ...] = ()
    if kind == "data" and kind in first and kind in other:
        about = _arguments(first[kind], other[kind])
        detail = f"they differ in {', '.join(map(repr, about))}"
    else:
        values = (each.get(kind, "nothing") for each in (first, other))
        detail = ", ".join(f"rank {r} has {v}" for r, v in zip(ranks, values, strict=True))
    what, hint = _DIFFERENCES[kind]
    return DifferenceError(
        f"rank {ranks[1]} has {what} than rank {ranks[0]} of the same pipeline",
        f"all ranks of one pipeline run the same batch; {detail}",
        hint,
        about=about,
        kind=kind,
        rank=ranks[1],
    )


def _arguments(first: str, other: str) -> tuple[str, ...]:
    """Return the names of the arguments whose values differ on two ranks, such as ("x", "mask").

    Args:
        first, other: Text with the checksums of all arguments, on the first and on the second rank.
    """
    pairs = zip(first.split("; "), other.split("; "), strict=False)
    return tuple(a.rpartition(" ")[0] for a, b in pairs if a != b)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParams:
    """Frozen parameters (requires_grad=False) in the model of one rank of a pipeline.

    Attributes:
        frozen: Names of the parameters that are frozen in this rank's model.
        held: Names of the parameters whose values are on this rank.
        agreed: Names of the parameters that were frozen on all ranks in the last step.
    """

    frozen: frozenset[str]
    held: frozenset[str]
    agreed: frozenset[str]


def sync_frozen(split: PartitionedModel, axis: Axis) -> bool:
    """Copy changes of `requires_grad` to the other ranks of a pipeline.

    If several ranks hold a parameter, all of them must have made the same change. Otherwise the
    change is not copied, and the function `agree` raises an error later. All ranks of `axis` must
    call this.

    Args:
        split: Model that is split into stages.
        axis: Ranks that call this function: the world or this pipeline.

    Returns:
        True if a change was found in any pipeline; the same on all ranks of `axis`.
    """
    groups = split.groups
    answers = all_gather_object(_frozen_view(split), groups.of(axis))
    views = dict(zip(groups.members(axis), answers, strict=True))
    pipelines = [
        _agreed_changes([views[rank] for rank in pipeline])
        for pipeline in groups.replicas
        if pipeline[0] in views
    ]
    own = _agreed_changes([views[rank] for rank in groups.members(Axis.MP)])
    for name, is_frozen in own.items():
        for alias in split.aliases(name):
            split.model.get_parameter(alias).requires_grad_(not is_frozen)
    return any(pipelines)


def _frozen_view(split: PartitionedModel) -> FrozenParams:
    """Return the frozen parameters of this rank's model and the parameters that the rank holds."""
    own = {id(each) for stage in split.stages.values() for each in stage.parameters()}
    names = (name for name, _ in split.skeleton.named_parameters())
    held = [
        name
        for name in names
        if any(id(split.model.get_parameter(alias)) in own for alias in split.aliases(name))
    ]
    return FrozenParams(
        frozen=frozenset(split.frozen()),
        held=frozenset(held),
        agreed=frozenset(split.agreed_frozen),
    )


def _agreed_changes(ranks: list[FrozenParams]) -> dict[str, bool]:
    """Find the parameters that were frozen or unfrozen since the last step.

    A parameter counts only if all ranks that hold the parameter have made the same change.

    Args:
        ranks: Frozen parameters of each rank of a pipeline.

    Returns:
        Names of the changed parameters, with True for a frozen and False for a trained parameter.
    """
    agreed = ranks[0].agreed
    changed: dict[str, bool] = {}
    for name in frozenset().union(*(each.held for each in ranks)):
        views = {name in each.frozen for each in ranks if name in each.held}
        if views == {name not in agreed}:
            changed[name] = name not in agreed
    return changed
