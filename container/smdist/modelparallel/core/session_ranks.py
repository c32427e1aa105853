# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and groups under SMP's function names, each with the prefix of its group.

pp   the ranks of a pipeline                    rdp  the ranks with the same parameters
tp   the ranks over which tensors are split     dp   the ranks of the same stage, tp x rdp
mp   the ranks of a replica, pp x tp

They are the same for PyTorch and Keras: a session says which ranks are in each group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from smdist.modelparallel.core.rank_layout import Axis


class RankSession(Protocol):
    """Session of model parallelism on one rank."""

    @property
    def rank(self) -> int:
        """World rank of this process."""

    @property
    def size(self) -> int:
        """Number of ranks in the world."""

    @property
    def local_rank(self) -> int:
        """Number of this rank on its host."""

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""

    def members(self, axis: Axis) -> Sequence[int]:
        """Return the world ranks of this rank's group of an axis, in group order.

        Raises:
            OptionError: The planner has not chosen the pipeline degree yet.
        """


class RankFunctions:
    """Functions of SMP about this rank and its groups.

    Each raises OptionError if there is no session; those about groups also if the planner has not
    chosen the pipeline degree yet.

    Args:
        session: Function that returns the session.
    """

    def __init__(self, session: Callable[[], RankSession]) -> None:
        self._session = session

    def rank(self) -> int:
        """Return the number of this rank in the world."""
        return self._session().rank

    def size(self) -> int:
        """Return the number of ranks in the world."""
        return self._session().size

    def local_rank(self) -> int:
        """Return the number of this rank on its host."""
        return self._session().local_rank

    def local_size(self) -> int:
        """Return the number of ranks on this host."""
        return self._session().local_size

    def pp_rank(self) -> int:
        """Return the number of this rank in its pipeline, from 0."""
        return self._rank_in(Axis.PP)

    def pp_size(self) -> int:
        """Return the number of ranks in a pipeline."""
        return len(self.members(Axis.PP))

    def tp_rank(self) -> int:
        """Return the number of this rank among those that split its tensors; 0 if none do."""
        return self._rank_in(Axis.TP)

    def tp_size(self) -> int:
        """Return the number of ranks over which each tensor is split; 1 if none are."""
        return len(self.members(Axis.TP))

    def rdp_rank(self) -> int:
        """Return the number of this rank among the ranks with the same parameters."""
        return self._rank_in(Axis.RDP)

    def rdp_size(self) -> int:
        """Return the number of replicas of each parameter."""
        return len(self.members(Axis.RDP))

    def dp_rank(self) -> int:
        """Return the number of this rank among the ranks of the same stage."""
        return self._rank_in(Axis.DP)

    def dp_size(self) -> int:
        """Return the number of ranks of the same stage."""
        return len(self.members(Axis.DP))

    def mp_rank(self) -> int:
        """Return the number of this rank in its replica of the model."""
        return self._rank_in(Axis.MP)

    def mp_size(self) -> int:
        """Return the number of ranks in a replica of the model."""
        return len(self.members(Axis.MP))

    def get_pp_group(self) -> list[int]:
        """Return the world ranks of this rank's pipeline, in the order of the pipeline."""
        return self.members(Axis.PP)

    def get_tp_group(self) -> list[int]:
        """Return the world ranks over which this rank's tensors are split."""
        return self.members(Axis.TP)

    def get_rdp_group(self) -> list[int]:
        """Return the world ranks with the same parameters as this rank."""
        return self.members(Axis.RDP)

    def get_dp_group(self) -> list[int]:
        """Return the world ranks with the same stage as this rank."""
        return self.members(Axis.DP)

    def get_mp_group(self) -> list[int]:
        """Return the world ranks of this rank's replica."""
        return self.members(Axis.MP)

    def members(self, axis: Axis) -> list[int]:
        """Return the world ranks of this rank's group of an axis (such as PP), in group order."""
        return list(self._session().members(axis))

    def _rank_in(self, axis: Axis) -> int:
        return self.members(axis).index(self.rank())
