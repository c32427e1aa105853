# SPDX-License-Identifier: Apache-2.0
"""State of each rank in a checkpoint: its replica, its random state and its position in the data.

A checkpoint stores this state of all ranks, so that training continues as it would have without the
interruption.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smdist.modelparallel.torch.accelerator import accelerator_module
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplica:
    """Description of a rank: its number, its replica, and the layout and progress of the job.

    Attributes:
        rank: Number of the rank in the world.
        replica: Number of the rank's replica; None before the planner has chosen a plan.
        num_replicas: Number of replicas; None before the planner has chosen a plan.
        layout: Number of ranks, parallel degrees and placement strategy, by name.
        run: Random seed and number of training steps, under the keys "seed" and "step". Empty for
            a plain nn.Module.
    """

    rank: int
    replica: int | None
    num_replicas: int | None
    layout: Mapping[str, Any]
    run: Mapping[str, int]

    @classmethod
    def of(cls, split: Any, team: Team) -> RankReplica:
        """Describe this rank: its number, its replica, and the layout and progress of the job.

        Args:
            split: Model that smp.parallelize returned. None for a plain nn.Module; then each rank
                is its own replica.
            team: All ranks.
        """
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
            replica=None if groups is None else groups.rdp_rank,
            num_replicas=None if groups is None else groups.rdp_size,
            layout={"size": team.size, **layout},
            run={"seed": split.seed, "step": split.step_number},
        )

    def random_of(self, states: Sequence[Any], layout: Mapping[str, Any]) -> Any:
        """Return the random state to restore on this rank.

        Args:
            states: Saved random states, by rank.
            layout: Layout of the job that saved them: number of ranks, parallel degrees and
                placement strategy, by name. If the present job has another layout, every rank
                gets the state of rank 0.
        """
        known = self.layout.keys() & layout.keys()
        is_same = all(self.layout[name] == layout[name] for name in known)
        return states[self.rank if is_same else 0]

    def data_of(self, states: Sequence[tuple[int | None, Any]], num_replicas: int | None) -> Any:
        """Return the position in the data to restore on this rank.

        Args:
            states: Pairs of a replica's number and its saved position, by rank.
            num_replicas: Number of replicas when the positions were saved.

        Raises:
            CheckpointError: The number of replicas has changed, and the saved positions of the
                replicas are not all equal.
        """
        if self.num_replicas is not None and self.num_replicas == num_replicas:
            return next(state for replica, state in states if replica == self.replica)
        first = states[0][1]
        if all(repr(state) == repr(first) for _, state in states):
            return first
        raise CheckpointError(
            f"the checkpoint has data positions of {num_replicas} replicas, and now there are"
            f" {self.num_replicas}",
            "each replica had another part of the data and another position in this part",
            "Pass data=None, and let your script skip the samples that were used already",
            about="data",
        )


def _groups(split: Any) -> Any:
    """Return the process groups of a split model; None before the planner has chosen a plan."""
    if split.is_cut:
        return split.groups
    return split.session.groups if split.session.is_decided else None


_LAYOUT = (
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "placement_strategy",
)


def random_state() -> dict[str, Any]:
    """Return the states of the random generators of this process.

    Keys are "python", "torch", "numpy" (None if it is not imported) and "cuda": the state of the
    current device of an accelerator of any type, None without one.
    """
    numpy, module = sys.modules.get("numpy"), accelerator_module()
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state() if numpy else None,
        "cuda": None if module is None else module.get_rng_state(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the random states that `random_state` returned."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["numpy"] is not None:
        import numpy as np

        np.random.set_state(state["numpy"])
    module = accelerator_module()
    if state["cuda"] is not None and module is not None:
        module.set_rng_state(state["cuda"])
