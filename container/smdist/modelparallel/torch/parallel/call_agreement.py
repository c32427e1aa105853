# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks on the coming call: its capture, and a digest that ranks compare.

A forward function may do something else for another sequence length, for a smaller batch or in
evaluation mode, so the model is captured again for each such call. Units stay on the stages where
they ran first.

A rank with another batch would send data that the next rank does not expect: one of them would
wait forever, or the model would train on wrong numbers. Each rank therefore sends eight bytes, a
digest of what it is about to do; only if digests differ do ranks exchange details. In a training
step a rank with an error would stop all replicas, so all ranks of the world take part.

Parameters can also be frozen, or trained again, after the cut. `model.named_parameters()` then has
only those of this rank, so a loop that freezes some of them changes another part of the model on
each rank, while captures need all of it. `sync_frozen` therefore lets the ranks that hold a
parameter decide about it.
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
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import Captured, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.executor.failure_broadcast import Alarm
from smdist.modelparallel.torch.parallel.model_state import PartitionedModel
from smdist.modelparallel.torch.parallel.step_function import example_of
from smdist.modelparallel.torch.program.pytree import described
from smdist.modelparallel.torch.session.object_collectives import all_gather_object
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.session.rank_team import DisagreementError, error_text, raise_first

BEFORE: Final = "the step, before the model's call"
_EMPTY_MODULE = nn.Module()
_SAME_DATA: Final = (
    "Create the DistributedSampler with num_replicas=smp.dp_size() and rank=smp.dp_rank(), and seed"
    " random transforms of the data set with smp.dp_rank()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedCall:
    """Capture of the model for the arguments of its next call.

    Attributes:
        key: Signature of the call, under which the capture is cached.
        captured: Graph and program of the call.
        placement: Stage of each operation of the graph.
        text: Description of arguments, modes and frozen parameters, which ranks compare.
        has_gradients: True if gradients are enabled at the call.
    """

    key: Hashable
    captured: Captured
    placement: Placement
    text: str
    has_gradients: bool


def find_capture(split: PartitionedModel, arguments: Arguments) -> CapturedCall:
    """Return the cached capture for these arguments and the present modes, or make a new one.

    Raises:
        CaptureError: The model cannot be captured.
        OptionError: The model has other units than when it was cut.
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
    """Return the signature of a call; read all modules only if a setting has changed."""
    short = split.skeleton_sync.version, signature(_EMPTY_MODULE, arguments)
    if split.latest_signature is None or split.latest_signature[0] != short:
        split.latest_signature = short, signature(split.skeleton, arguments)
    return split.latest_signature[1]


def _call_text(split: PartitionedModel, arguments: Arguments) -> str:
    """Describe a call for the comparison between ranks: arguments, modes, frozen parameters."""
    mode = "in training" if split.skeleton.training else "in evaluation"
    grads = "with gradients" if torch.is_grad_enabled() else "without gradients"
    frozen = split.frozen()
    last = f", frozen: {', '.join(frozen)}" if frozen else ""
    return f"{described(arguments)} {mode} {grads}{last}"


def _captured(split: PartitionedModel, example: Any) -> tuple[Captured, Placement]:
    """Capture the model for an example of its arguments, and place the graph on the stages."""
    plan = split.plan
    found = capture(split.skeleton, example, opened=plan.opened)
    _check_units(split.captured.graph, found.graph)
    known = {node.name for node in found.graph.units}
    stage_of = {name: stage for name, stage in plan.stage_of.items() if name in known}
    placement = place(found.graph, stage_of, num_stages=len(plan.stages))
    return replace(found, example=None), placement


def _check_units(before: Graph, now: Graph) -> None:
    """Check that a new capture has the units, and the parameters in them, of the first capture.

    Raises:
        OptionError: They differ.
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
    )


def _some(names: Collection[str]) -> str:
    """List up to three names, and the number of further ones."""
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(map(repr, listed[:3])) + more


@contextmanager
def ending_all(groups: Groups, doing: str) -> Iterator[None]:
    """Surround a collective block: if it raises on one rank, end the work of all ranks.

    Args:
        doing: Work of the block, for messages: "the cut of the model".

    Raises:
        BaseException: The error of this rank.
        StepError: Another rank failed first; the error names that rank.
    """
    try:
        yield
    except BaseException as error:
        if session.current().size == 1:
            raise
        failure = Alarm(groups.of(Axis.PP)).error(error, doing, "the model")
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
    """Ranks of one pipeline called the model differently; all of them raise this error.

    Its `kind` is the difference: "inputs", "model" or "data".
    """


def agree(
    groups: Groups,
    axis: Axis,
    descriptions: dict[str, str],
    fault: BaseException | None = None,
) -> None:
    """Check that the ranks of each pipeline will run the same call, and that none has an error.

    Args:
        axis: Ranks that exchange digests: the world before a training step, else this pipeline.
        descriptions: Texts that describe the call, under "inputs", "model" and "data". Equal calls
            have equal texts in every process.
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

    Returns:
        World ranks of the pipeline's first rank and of a rank that differs from it; [] if all
        pipelines have equal values.
    """
    for pipeline in groups.pipelines:
        for rank in pipeline:
            if rank in values and values[rank] != values[pipeline[0]]:
                return [pipeline[0], rank]
    return []


def _digest(descriptions: dict[str, str]) -> int:
    """Return a hash of 7 bytes, which fits in a signed 64-bit integer."""
    text = repr(sorted(descriptions.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _raise_difference(
    groups: Groups, axis: Axis, descriptions: dict[str, str], fault: BaseException | None
) -> None:
    """Exchange descriptions and errors of all ranks of an axis, and raise what was found."""
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
    """Return the error for two ranks of one pipeline whose descriptions differ.

    Args:
        ranks: World ranks of the two.
        first, other: Descriptions of the call on these ranks, as in `agree`.
    """
    kind = next(kind for kind in _DIFFERENCES if first.get(kind) != other.get(kind))
    if kind == "data" and kind in first and kind in other:
        detail = f"they differ in {_arguments(first[kind], other[kind])}"
    else:
        values = (each.get(kind, "nothing") for each in (first, other))
        detail = ", ".join(f"rank {r} has {v}" for r, v in zip(ranks, values, strict=True))
    what, hint = _DIFFERENCES[kind]
    return DifferenceError(
        f"rank {ranks[1]} has {what} than rank {ranks[0]} of the same pipeline",
        f"all ranks of one pipeline run the same batch; {detail}",
        hint,
        kind=kind,
    )


def _arguments(first: str, other: str) -> str:
    """Return the paths of the arguments whose checksums differ, such as "'x', 'mask'".

    Args:
        first, other: Texts of `checksum` on two ranks.
    """
    pairs = zip(first.split("; "), other.split("; "), strict=False)
    return ", ".join(repr(a.rpartition(" ")[0]) for a, b in pairs if a != b)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParams:
    """State of frozen parameters on one rank of a pipeline.

    Attributes:
        frozen: Names of the parameters that are frozen in this rank's model.
        held: Names of the parameters whose values are on this rank.
        agreed: Names of the parameters that were frozen on all ranks in the last step.
    """

    frozen: frozenset[str]
    held: frozenset[str]
    agreed: frozenset[str]


def sync_frozen(split: PartitionedModel, axis: Axis) -> bool:
    """Freeze or unfreeze parameters here as the ranks that hold them did; collective over `axis`.

    A change is applied only if all ranks that hold the parameter made it. `agree` reports other
    differences.

    Returns:
        True if a change was applied in any pipeline; the same on all ranks of `axis`.
    """
    groups = split.groups
    answers = all_gather_object(_frozen_view(split), groups.of(axis))
    views = dict(zip(groups.members(axis), answers, strict=True))
    pipelines = [
        _agreed_changes([views[rank] for rank in pipeline])
        for pipeline in groups.pipelines
        if pipeline[0] in views
    ]
    own = _agreed_changes([views[rank] for rank in groups.members(Axis.PP)])
    for name, is_frozen in own.items():
        for alias in split.aliases(name):
            split.model.get_parameter(alias).requires_grad_(not is_frozen)
    return any(pipelines)


def _frozen_view(split: PartitionedModel) -> FrozenParams:
    """Return the state of frozen parameters on this rank."""
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
    """Return the parameters that every rank holding them has frozen or unfrozen since last step.

    Args:
        ranks: State of each rank of a pipeline.

    Returns:
        By name of a changed parameter, True if it is frozen now.
    """
    agreed = ranks[0].agreed
    changed: dict[str, bool] = {}
    for name in frozenset().union(*(each.held for each in ranks)):
        views = {name in each.frozen for each in ranks if name in each.held}
        if views == {name not in agreed}:
            changed[name] = name not in agreed
    return changed
