# SPDX-License-Identifier: Apache-2.0
"""Comparison of partitioning methods: smdist's, those of other projects, and exhaustive search.

The load of a stage is defined by `assigned`: its forward and backward seconds, and the time of
its input and output on the link.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import comb

from benchmarks.balance.peers import PEERS
from smdist.modelparallel.core.cost import Costs, Link, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition import assigned, partition
from smdist.modelparallel.core.partition.chain import chain_of

OURS = "smdist"
METHODS = (OURS, *PEERS)
LINK = Link(bytes_per_second=1e9)
MOST_CUTS = 6_000_000


def imbalances(graph: Graph, costs: Costs, num_stages: int) -> Mapping[str, float]:
    """Return, by method, the largest load of a stage divided by the load of equal stages."""
    share = sum(costs.of(node.name).seconds for node in graph.nodes) / num_stages
    ours = partition(graph, costs, num_stages=num_stages, link=LINK)
    found = {OURS: max(ours.loads) / share}
    for name, peer in PEERS.items():
        stage_of = peer(graph, costs, num_stages)
        theirs = assigned(graph, costs, stage_of, num_stages=num_stages, link=LINK)
        found[name] = max(theirs.loads) / share
    return found


def is_best(graph: Graph, costs: Costs, num_stages: int) -> bool | None:
    """Return whether smdist's largest load is the least possible; None: too many to try."""
    chain = chain_of(graph, costs, StateBytes())
    count = len(chain.names)
    if comb(count - 1, num_stages - 1) > MOST_CUTS:
        return None
    loads: dict[tuple[int, int], float] = {}
    for end in range(1, count + 1):
        for back, span in enumerate(chain.spans_ending(end)):
            wire = LINK.seconds(span.wire_bytes)
            loads[end - 1 - back, end] = span.seconds + wire
    least = min(
        max(loads[span] for span in pairwise((0, *cuts, count)))
        for cuts in combinations(range(1, count), num_stages - 1)
    )
    ours = max(partition(graph, costs, num_stages=num_stages, link=LINK).loads)
    return ours <= least * (1 + 1e-9)
