# SPDX-License-Identifier: Apache-2.0
"""Where this process is among those that write or read a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smdist.modelparallel.torch.checkpoint.errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank and its replica.

    Attributes:
        rank: In the world.
        replica: Which part of the data it trains on; None before that is known.
        num_replicas: How many parts there are.
        layout: Of all ranks.
        run: Seed and step of a split model.
    """

    rank: int
    replica: int | None
    num_replicas: int | None
    layout: Mapping[str, Any]
    run: Mapping[str, int]

    @classmethod
    def of(cls, split: Any, team: Team) -> Place:
        """Of a split model, or of a plain one (None): then each rank is a replica."""
        if split is None:
            layout: dict[str, Any] = {"size": team.size}
            return cls(
                rank=team.rank, replica=team.rank, num_replicas=team.size, layout=layout, run={}
            )
        groups = _groups(split)
        found = None if groups is None else groups.layout
        layout = {} if found is None else {name: getattr(found, name) for name in _LAYOUT}
        return cls(
            rank=team.rank,
            replica=None if groups is None else groups.dp_rank,
            num_replicas=None if groups is None else groups.dp_size,
            layout={"size": team.size, **layout},
            run={"seed": split.seed, "step": split.step_number},
        )

    def random_of(self, states: Sequence[Any], layout: Mapping[str, Any]) -> Any:
        """This rank's random state where the layout is the same, rank 0's otherwise."""
        known = self.layout.keys() & layout.keys()
        is_same = all(self.layout[name] == layout[name] for name in known)
        return states[self.rank if is_same else 0]

    def data_of(self, states: Sequence[tuple[int | None, Any]], num_replicas: int | None) -> Any:
        """The position of this rank's replica in its data.

        Raises:
            CheckpointError: There are other replicas, and they were at different places.
        """
        if self.num_replicas is not None and self.num_replicas == num_replicas:
            return next(state for replica, state in states if replica == self.replica)
        first = states[0][1]
        if all(repr(state) == repr(first) for _, state in states):
            return first
        raise CheckpointError(
            f"data positions of {num_replicas} replicas, and there are {self.num_replicas}",
            "each had its own part of the data and was at another place in it",
            "Pass data=None, and go to the place in the data by the number of samples",
        )


def _groups(split: Any) -> Any:
    """Who is where; None while the planner has not decided."""
    if split.is_cut:
        return split.groups
    return split.session.groups if split.session.is_decided else None


_LAYOUT = (
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "placement_strategy",
)
