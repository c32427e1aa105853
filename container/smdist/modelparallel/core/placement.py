# SPDX-License-Identifier: Apache-2.0
"""Which stages a node runs on, and which values travel between stages.

A unit runs on its stage. Glue runs where the last of its inputs comes from. What depends on the
model's inputs alone runs on every stage that wants it, since every stage has the inputs: masks
and position ids never travel. A value goes straight from the stage that writes it to each stage
that reads it, however many lie between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value that travels from one stage to another, and its gradient that travels back.

    Attributes:
        value: Its name in the graph.
        num_bytes: Of one microbatch, one way.
    """

    value: str
    source: int
    target: int
    num_bytes: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A parameter that several stages hold: their gradients are summed before each update."""

    parameter: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A graph on stages.

    Attributes:
        num_stages: How many there are.
        stages: Where each node runs, by its name; replicated nodes run on several stages.
        edges: What travels, each edge once, ordered by source, target, then execution.
        ties: Parameters on several stages.
    """

    num_stages: int
    stages: Mapping[str, tuple[int, ...]]
    edges: tuple[Edge, ...]
    ties: tuple[Tie, ...]
