# SPDX-License-Identifier: Apache-2.0
"""Layout of pipelines on a cluster: the ranks of each pipeline, and the links between them.

    2 hosts of 4 ranks, pipelines of 2        host 0              host 1
    pipeline                                  0  0  1  1          2  2  3  3
    rank of the pipeline                      0  1  0  1          0  1  0  1

Ranks of one pipeline are neighbours. So messages between its stages, which are sent for every
microbatch, stay on a host if possible. Gradients travel between pipelines only once in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.simulate import ReplicaLinks, replicas_on


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """Positions of equal pipelines on a cluster.

    Attributes:
        cluster: Cluster whose ranks the pipelines use.
        pipeline_size: Number of ranks of one pipeline.
        num_pipelines: Number of parallel pipelines.
    """

    cluster: Cluster
    pipeline_size: int
    num_pipelines: int

    def rank(self, pipeline: int, pipeline_rank: int) -> int:
        """Return the rank in the cluster of rank `pipeline_rank` of a pipeline."""
        return pipeline * self.pipeline_size + pipeline_rank

    def link(self, rank: int, other: int) -> Link:
        """Return the link between two ranks of a pipeline: the slowest one among all pipelines.

        Args:
            rank: Rank within the pipeline.
            other: Other rank within the pipeline.
        """
        links = (
            self.cluster.link(self.rank(each, rank), self.rank(each, other))
            for each in range(self._num_kinds)
        )
        return max(links, key=slowness)

    def links(self) -> Callable[[int, int], Link]:
        """Return a function that works like `link` but computes each pair of ranks only once."""
        known: dict[tuple[int, int], Link] = {}

        def find(rank: int, other: int) -> Link:
            if (rank, other) not in known:
                known[rank, other] = self.link(rank, other)
            return known[rank, other]

        return find

    def replicas(self, pipeline_rank: int) -> ReplicaLinks:
        """Return the links between the ranks that hold the same stages and sum their gradients.

        Args:
            pipeline_rank: Rank of these stages within each pipeline.
        """
        ranks = [self.rank(each, pipeline_rank) for each in range(self.num_pipelines)]
        return replicas_on(self.cluster, ranks)

    @property
    def _num_kinds(self) -> int:
        """Number of first pipelines to look at: together they have links of all kinds."""
        return min(self.num_pipelines, self.cluster.ranks_per_host)


def slowness(link: Link) -> tuple[float, float]:
    """Return a sort key for links, larger for slower ones: seconds per byte, then latency."""
    return 1 / link.bytes_per_second, link.latency_seconds
