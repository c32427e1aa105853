# SPDX-License-Identifier: Apache-2.0
"""What the model is about to be called with, and the capture that serves it.

Another length of sequences, a smaller batch, evaluation: forward functions may do something else
then, so the skeleton is captured again. What ran before on a stage runs there again.
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
from smdist.modelparallel.torch.capture import Captured, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel.agreement import described
from smdist.modelparallel.torch.parallel.cut import Split
from smdist.modelparallel.torch.parallel.work import example_of

_NOTHING = nn.Module()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the model is about to be called with.

    Attributes:
        text: For the other ranks of the pipeline.
        has_gradients: Whether gradients are enabled there.
    """

    key: Hashable
    captured: Captured
    placement: Placement
    text: str
    has_gradients: bool


def look(split: Split, arguments: Arguments) -> Seen:
    """Find or make the capture for these arguments, in the modes of where this is called.

    Raises:
        CaptureError: It cannot be made.
        OptionError: The model has other units than when it was cut.
    """
    split.mirror.update()
    key = _key(split, arguments)
    if key not in split.known:
        split.keep(key, _captured(split, example_of(arguments, split.skeleton)))
    captured, placement = split.recall(key)
    return Seen(
        key=key, captured=captured, placement=placement, text=_told(split, arguments),
        has_gradients=torch.is_grad_enabled(),
    )  # fmt: skip


def _key(split: Split, arguments: Arguments) -> Hashable:
    """The signature; the walk through all modules is spared where none of them has changed."""
    short = split.mirror.version, signature(_NOTHING, arguments)
    if split.latest is None or split.latest[0] != short:
        split.latest = short, signature(split.skeleton, arguments)
    return split.latest[1]


def _told(split: Split, arguments: Arguments) -> str:
    mode = "in training" if split.skeleton.training else "in evaluation"
    grads = "with gradients" if torch.is_grad_enabled() else "without gradients"
    frozen = split.frozen()
    last = f", frozen: {', '.join(frozen)}" if frozen else ""
    return f"{described(arguments)} {mode} {grads}{last}"


def _captured(split: Split, example: Any) -> tuple[Captured, Placement]:
    plan = split.plan
    found = capture(split.skeleton, example, opened=plan.opened)
    _check_units(split.captured.graph, found.graph)
    known = {node.name for node in found.graph.units}
    stage_of = {name: stage for name, stage in plan.stage_of.items() if name in known}
    placement = place(found.graph, stage_of, num_stages=len(plan.stages))
    return replace(found, example=None), placement


def _check_units(before: Graph, now: Graph) -> None:
    """Those that must be on a stage, with their parameters."""
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
