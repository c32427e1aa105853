# SPDX-License-Identifier: Apache-2.0
"""Model as one rank has it, for each number of ranks that split its layers, with its costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.layout import Layout, Machine
from smdist.modelparallel.core.layout.from_graph import BorderMessages
from smdist.modelparallel.core.layout.node_costs import costs_in_layout
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.planning.plan_request import Request
from smdist.modelparallel.torch.planning.sampler import CostSource
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.tensor_parallel.planned_splits import SplitCopy, split_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Model whose layers are split over a number of ranks.

    Attributes:
        model: Model as one rank has it; the user's own model for one rank.
        cluster: Cluster in which ranks that split layers count as one device.
        read: Function that reads the arguments of a plan for this model and cluster.
        messages: All-reduces of split modules, by name.
    """

    model: nn.Module
    cluster: Cluster
    read: Callable[[nn.Module, Cluster], Request]
    messages: Mapping[str, BorderMessages]

    def request(self) -> Request:
        """Return checked arguments of a plan, with costs that are not known yet."""
        return self.read(self.model, self.cluster)


def split_variants(
    model: nn.Module, batch: Batch, cluster: Cluster, degrees: Iterable[int],
    read: Callable[[nn.Module, Cluster], Request],
) -> tuple[dict[int, Variant], str]:  # fmt: skip
    """Return a model split over each of some numbers of ranks that divides its layers.

    Args:
        model: The user's model.
        batch: Batch of one replica.
        cluster: Cluster to plan for.
        degrees: Numbers of ranks, all above 1.
        read: Function that reads the arguments of a plan for a model and a cluster.

    Returns:
        Models by the number of ranks, and the reason why there are none; "" if there are some.
    """
    copies, why = copies_for(model, batch, degrees)
    found = {
        degree: Variant(
            model=each.model, cluster=grouped(cluster, degree), read=read, messages=each.messages
        )
        for degree, each in copies.items()
    }
    return found, why


def copies_for(
    model: nn.Module, batch: Batch, degrees: Iterable[int]
) -> tuple[dict[int, SplitCopy], str]:
    """Return copies of a model that are split over numbers of ranks, and why there are none.

    Args:
        model: The user's model.
        batch: Batch of one replica.
        degrees: Numbers of ranks, all above 1.
    """
    arguments: Any = arguments_of(batch.microbatch(batch.size))
    return split_copies(model, arguments, 1, degrees)


def split_copy(model: nn.Module, batch: Batch, degree: int) -> SplitCopy:
    """Return a copy of a model whose layers are split over a number of ranks.

    Args:
        model: The user's model.
        batch: Batch of one replica.
        degree: Number of ranks that split each layer, above 1.

    Raises:
        OptionError: No layer of the model can be split over so many ranks.
    """
    copies, why = copies_for(model, batch, [degree])
    require(
        degree in copies,
        what=f"the plan splits each layer over {degree} ranks",
        why=why or f"{degree} does not divide the layers of {type(model).__name__}",
        hint="Use the model of the plan, or make another plan",
        about="tensor_parallel_degree",
        kind="no_split",
    )
    return copies[degree]


def grouped(cluster: Cluster, degree: int) -> Cluster:
    """Return a cluster in which ranks that split layers count as one device.

    Args:
        cluster: The cluster.
        degree: Number of ranks that split each layer.

    Raises:
        OptionError: It does not divide the ranks of a host.
    """
    require(
        cluster.ranks_per_host % degree == 0,
        what=f"the plan splits each layer over {degree} ranks",
        why=f"a host has {cluster.ranks_per_host}, and these ranks are on one host",
        hint="Use another cluster, or make another plan",
        about="tensor_parallel_degree",
        kind="indivisible",
    )
    return replace(cluster, ranks_per_host=cluster.ranks_per_host // degree)


class LayoutCosts:
    """Source of costs with the messages and copies of a layout, for the planner of stages.

    Args:
        source: Source of the costs without them.
        layout: The layout.
        machine: Machine of the layout.
        messages: All-reduces of split modules, by name.
        batch_size: Samples of the batch of one replica.
    """

    def __init__(
        self, source: CostSource, layout: Layout, machine: Machine,
        messages: Mapping[str, BorderMessages], batch_size: int,
    ) -> None:  # fmt: skip
        self._source, self._layout, self._machine = source, layout, machine
        self._messages, self._batch_size = messages, batch_size
        self._known: dict[tuple[int, frozenset[str]], tuple[Graph, Costs]] = {}

    @property
    def measures(self) -> bool:
        """True if the costs are measured."""
        return self._source.measures

    def at(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Graph, Costs]:
        """Return the graph and the costs for one microbatch, as `Sampler.at`."""
        key = (num_microbatches, opened)
        if key not in self._known:
            graph, costs = self._source.at(num_microbatches, opened)
            samples = self._batch_size // num_microbatches
            changed = costs_in_layout(
                graph, costs, self._layout, self._machine, self._messages, samples
            )
            self._known[key] = graph, changed
        return self._known[key]

    def note(self, error: SizeError) -> Note:
        """Return a note that says why a size of microbatch was not tried."""
        return self._source.note(error)

    def notes(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Note, ...]:
        """Return the notes from the recording of the forward pass."""
        return self._source.notes(num_microbatches, opened)
