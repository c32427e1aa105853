# SPDX-License-Identifier: Apache-2.0
"""Captures of a model, by the arguments it is called with.

With another sequence length, a smaller batch or in evaluation mode, forward functions may do
something else, so the skeleton is captured again. Units stay on the stages where they ran first.

Parameters can also be frozen, or trained again, after the cut. `model.named_parameters()` then has
only those of this rank, so a loop that freezes some of them changes another part of the model on
each rank, while captures need all of it. `sync_frozen` therefore lets the ranks that hold a
parameter decide about it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, place, placed_units
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.capture import Captured, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel.partitioned_model import PartitionedModel
from smdist.modelparallel.torch.parallel.rank_agreement import described
from smdist.modelparallel.torch.parallel.step_function import example_of
from smdist.modelparallel.torch.session.object_collectives import all_gather_object

_NOTHING = nn.Module()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedCall:
    """Arguments of the coming call of the model, and the capture that serves them.

    Attributes:
        text: Description that ranks of the pipeline compare.
        has_gradients: True if gradients are enabled at the call.
    """

    key: Hashable
    captured: Captured
    placement: Placement
    text: str
    has_gradients: bool


def find_capture(split: PartitionedModel, arguments: Arguments) -> CapturedCall:
    """Find or make the capture for these arguments, in the caller's modes.

    Raises:
        CaptureError: The model cannot be captured.
        OptionError: The model has other units than when it was cut.
    """
    split.mirror.update()
    key = _key(split, arguments)
    if key not in split.known:
        split.keep(key, _captured(split, example_of(arguments, split.skeleton)))
    captured, placement = split.recall(key)
    return CapturedCall(
        key=key, captured=captured, placement=placement, text=_told(split, arguments),
        has_gradients=torch.is_grad_enabled(),
    )  # fmt: skip


def _key(split: PartitionedModel, arguments: Arguments) -> Hashable:
    """Return the signature of a call; visit all modules only if one of them has changed."""
    short = split.mirror.version, signature(_NOTHING, arguments)
    if split.latest is None or split.latest[0] != short:
        split.latest = short, signature(split.skeleton, arguments)
    return split.latest[1]


def _told(split: PartitionedModel, arguments: Arguments) -> str:
    mode = "in training" if split.skeleton.training else "in evaluation"
    grads = "with gradients" if torch.is_grad_enabled() else "without gradients"
    frozen = split.frozen()
    last = f", frozen: {', '.join(frozen)}" if frozen else ""
    return f"{described(arguments)} {mode} {grads}{last}"


def _captured(split: PartitionedModel, example: Any) -> tuple[Captured, Placement]:
    plan = split.plan
    found = capture(split.skeleton, example, opened=plan.opened)
    _check_units(split.captured.graph, found.graph)
    known = {node.name for node in found.graph.units}
    stage_of = {name: stage for name, stage in plan.stage_of.items() if name in known}
    placement = place(found.graph, stage_of, num_stages=len(plan.stages))
    return replace(found, example=None), placement


def _check_units(before: Graph, now: Graph) -> None:
    """Check that the units on stages, and their parameters, are those of the cut."""
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
    said = [form.format(_some(names)) for form, names in parts.items() if names]
    raise OptionError(
        f"{now.model} now {' and '.join(said)}",
        "its stages were cut for the modules that ran in the first step",
        "Make the model as it is to be before the first step, or wrap the new one once more",
    )


def _some(names: Collection[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(map(repr, listed[:3])) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParams:
    """Frozen parameters from the view of one rank of a pipeline.

    Attributes:
        frozen: Names of the parameters that are frozen on this rank.
        held: Names of the parameters that this rank holds.
        agreed: Names of the parameters that were frozen in the last step.
    """

    frozen: frozenset[str]
    held: frozenset[str]
    agreed: frozenset[str]


def sync_frozen(split: PartitionedModel, axis: Axis) -> bool:
    """Apply changes of frozen parameters that their holders agree on; collective over `axis`.

    Returns:
        True if a rank of any pipeline has changed a parameter; the same on all ranks of `axis`.
        Differences that remain are found when the model is compared next.
    """
    groups = split.groups
    answers = all_gather_object(_frozen_view(split), groups.of(axis))
    told = dict(zip(groups.members(axis), answers, strict=True))
    pipelines = [
        _agreed_changes([told[rank] for rank in pipeline])
        for pipeline in groups.layout.all_members(Axis.PP)
        if pipeline[0] in told
    ]
    for name, is_frozen in _agreed_changes([told[r] for r in groups.members(Axis.PP)]).items():
        for alias in split.aliases(name):
            split.model.get_parameter(alias).requires_grad_(not is_frozen)
    return any(pipelines)


def _frozen_view(split: PartitionedModel) -> FrozenParams:
    own = {id(each) for stage in split.stages.values() for each in stage.parameters()}
    names = (name for name, _ in split.skeleton.named_parameters())
    held = [
        name
        for name in names
        if any(id(split.model.get_parameter(alias)) in own for alias in split.aliases(name))
    ]
    return FrozenParams(
        frozen=frozenset(split.frozen()), held=frozenset(held), agreed=frozenset(split.agreed)
    )


def _agreed_changes(ranks: list[FrozenParams]) -> dict[str, bool]:
    """Return parameters that all holders changed since the last step: True where frozen now."""
    agreed = ranks[0].agreed
    changed: dict[str, bool] = {}
    for name in frozenset().union(*(each.held for each in ranks)):
        views = {name in each.frozen for each in ranks if name in each.held}
        if views == {name not in agreed}:
            changed[name] = name not in agreed
    return changed
