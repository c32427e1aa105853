# SPDX-License-Identifier: Apache-2.0
"""Which ranks make up a pipeline, and what joins them.

    2 hosts of 4 ranks, pipelines of 2        host 0              host 1
    pipeline                                  0  0  1  1          2  2  3  3
    rank of the pipeline                      0  1  0  1          0  1  0  1

Ranks of one pipeline are neighbours, so its traffic stays on a host where it can: that comes once
for every microbatch, and gradients are summed over pipelines once for every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.simulate import Replicas, replicas_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Pipelines on a cluster.

    Attributes:
        pipeline_size: Ranks of one pipeline.
        num_pipelines: Pipelines beside each other.
    """

    cluster: Cluster
    pipeline_size: int
    num_pipelines: int

    def rank(self, pipeline: int, pipeline_rank: int) -> int:
        """Where a rank of a pipeline is among all."""
        return pipeline * self.pipeline_size + pipeline_rank

    def link(self, rank: int, other: int) -> Link:
        """What joins two ranks of a pipeline, in the pipeline where it is slowest."""
        links = (
            self.cluster.link(self.rank(each, rank), self.rank(each, other))
            for each in range(self._num_kinds)
        )
        return max(links, key=slowness)

    def links(self) -> Callable[[int, int], Link]:
        """The same, found once for each pair."""
        known: dict[tuple[int, int], Link] = {}

        def find(rank: int, other: int) -> Link:
            if (rank, other) not in known:
                known[rank, other] = self.link(rank, other)
            return known[rank, other]

        return find

    def replicas(self, pipeline_rank: int) -> Replicas:
        """Where the ranks are that hold what this one holds, and sum gradients with it."""
        ranks = [self.rank(each, pipeline_rank) for each in range(self.num_pipelines)]
        return replicas_on(self.cluster, ranks)

    @property
    def _num_kinds(self) -> int:
        """After so many pipelines they lie on hosts as the first ones do."""
        return min(self.num_pipelines, self.cluster.ranks_per_host)


def slowness(link: Link) -> tuple[float, float]:
    """What links are compared by: time a byte, then latency."""
    return 1 / link.bytes_per_second, link.latency_seconds
