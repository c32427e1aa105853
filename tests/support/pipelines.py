# SPDX-License-Identifier: Apache-2.0
"""Pipelines for tests of the simulator, written by hand and with round costs."""

from __future__ import annotations

import re

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule


def by_hand(*orders: str, rank_of: tuple[int, ...] = ()) -> Schedule:
    """Return a schedule from one line per rank: by_hand("0F0 0B0", "1F0 1B0")."""
    actions = tuple(tuple(map(_action, order.split())) for order in orders)
    count = 1 + max(action.microbatch for order in actions for action in order)
    return Schedule(
        name="by hand",
        rank_of=rank_of or tuple(range(len(orders))),
        num_microbatches=count,
        orders=actions,
    )


def _action(text: str) -> Action:
    stage, do, microbatch = re.fullmatch(r"(\d+)([FBIW])(\d+)", text).groups()
    return Action(Do(do), int(stage), int(microbatch))


def cost(
    forward: float = 1, inputs: float = 1, weights: float = 1, *, saved: int = 0, workspace: int = 0
) -> NodeCost:
    """Return the cost of one microbatch on one stage."""
    return NodeCost(
        forward_seconds=forward,
        input_gradient_seconds=inputs,
        weight_gradient_seconds=weights,
        saved_bytes=saved,
        workspace_bytes=workspace,
    )


def edge(source: int, target: int, num_bytes: int = 0, *, has_gradient: bool = True) -> Edge:
    """Return a value that one stage sends to another."""
    return Edge(
        value=f"{source}to{target}",
        source=source,
        target=target,
        num_bytes=num_bytes,
        has_gradient=has_gradient,
    )
