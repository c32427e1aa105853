# SPDX-License-Identifier: Apache-2.0
"""Ranks of TensorFlow in an elastic job, connected anew in each generation."""

from __future__ import annotations

from smdist.dataparallel.rendezvous.world import World as RankWorld
from smdist.dataparallel.tensorflow import basics
from smdist.elastic.agent_client import ElasticStore, Generation


class KerasWorld:
    """The ranks that init() of smdist.dataparallel.tensorflow has connected."""

    def size(self) -> int:
        """Return the number of ranks.

        Raises:
            OptionError: init() was not called.
        """
        return basics.size()

    def rank(self) -> int:
        """Return this rank's number."""
        return basics.rank()

    def leave(self) -> None:
        """Disconnect this rank, if it is connected."""
        basics.leave()

    def enter(self, generation: Generation, store: ElasticStore) -> None:
        """Connect this rank with the others of a generation."""
        world = RankWorld(
            rank=generation.rank,
            size=generation.size,
            local_rank=generation.local_rank,
            local_size=generation.local_size,
        )
        basics.rejoin(world, store)
