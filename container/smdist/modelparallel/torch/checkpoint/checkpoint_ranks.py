# SPDX-License-Identifier: Apache-2.0
"""Position of this process among the ranks of a checkpoint, and its random state.

A checkpoint stores random states and data positions, so that training continues after a resumption
as it would have without the interruption.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplica:
    """A rank and its replica.

    Attributes:
        rank: The rank in the world.
        replica: Number of the replica, and so of its part of the data; None before it is known.
        num_replicas: Number of replicas; None before it is known.
        layout: Degrees and placement of all ranks.
        run: Seed and step number of a split model; empty for a plain one.
    """

    rank: int
    replica: int | None
    num_replicas: int | None
    layout: Mapping[str, Any]
    run: Mapping[str, int]

    @classmethod
    def of(cls, split: Any, team: Team) -> RankReplica:
        """Return the position of this rank; of a plain model (None), each rank is a replica."""
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
        """Return this rank's random state if the layout is the same, otherwise rank 0's."""
        known = self.layout.keys() & layout.keys()
        is_same = all(self.layout[name] == layout[name] for name in known)
        return states[self.rank if is_same else 0]

    def data_of(self, states: Sequence[tuple[int | None, Any]], num_replicas: int | None) -> Any:
        """Return the position of this rank's replica in its data.

        Raises:
            CheckpointError: The number of replicas has changed, and their positions differed.
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
    """Return the groups of ranks; None before the planner has decided."""
    if split.is_cut:
        return split.groups
    return split.session.groups if split.session.is_decided else None


_LAYOUT = (
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "placement_strategy",
)


def random_state() -> dict[str, Any]:
    """Return the random state of Python, NumPy (if it is loaded), and PyTorch on CPU and GPU."""
    numpy = sys.modules.get("numpy")
    has_gpu = torch.cuda.is_available()
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state() if numpy else None,
        "cuda": torch.cuda.get_rng_state() if has_gpu else None,
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore a random state."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["numpy"] is not None:
        import numpy as np

        np.random.set_state(state["numpy"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
