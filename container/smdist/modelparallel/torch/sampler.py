# SPDX-License-Identifier: Apache-2.0
"""A model at the sizes of microbatches that the planner asks for: captured, and what parts cost."""

from __future__ import annotations

import logging
import time
from typing import Final

from torch import nn

from sagemaker_dist.errors import closest, require
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.capture import Captured, capture
from smdist.modelparallel.torch.measure import estimate, measure

_log = logging.getLogger(__name__)
_SOURCES: Final = ("auto", "measure", "estimate")
_UNKNOWN: Final = Device(
    name="a device of 1 TFLOP/s and 100 GB/s", flops_per_second=1e12, bytes_per_second=100e9
)
_Key = tuple[int, frozenset[str]]


class Sampler:
    """Captures and measures each size once.

    Args:
        costs: "measure", "estimate", or "auto": estimate what is on meta, measure the rest. What
            is on meta gets random weights where it is measured, a unit at a time.

    Raises:
        OptionError: `costs` is none of these.
    """

    def __init__(self, *, model: nn.Module, batch: Batch, cluster: Cluster, costs: str) -> None:
        on_meta = any(each.is_meta for each in model.parameters())
        check_source(costs)
        self._model, self._batch = model, batch
        self._measures = costs == "measure" or (costs == "auto" and not on_meta)
        self._device = cluster.device
        self._known: dict[_Key, tuple[Graph, Costs]] = {}
        self._notes: dict[_Key, tuple[str, ...]] = {}

    def at(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Graph, Costs]:
        """One microbatch of a batch cut into so many, with these units opened.

        Raises:
            CaptureError: The model's forward pass cannot be taken apart.
        """
        key = (num_microbatches, opened)
        if key not in self._known:
            example, begin = self._batch.microbatch(num_microbatches), time.perf_counter()
            captured = capture(self._model, example, opened=opened)
            costs = self._costs(captured)
            samples = self._batch.size // num_microbatches
            took = time.perf_counter() - begin
            words = "%s with microbatches of %d: %d units, %s, in %.1f s"
            _log.info(
                words, captured.graph.model, samples, len(captured.graph.units), costs.source, took
            )
            self._known[key] = captured.graph, costs
            self._notes[key] = captured.notes
        return self._known[key]

    def notes(self, num_microbatches: int, opened: frozenset[str]) -> tuple[str, ...]:
        """What to know of a sample and its costs: for people."""
        found = self._notes.get((num_microbatches, opened), ())
        if self._measures or _is_known(self._device):
            return found
        return (
            *found,
            f"How fast {self._device.name} is, nobody said: times are those of {_UNKNOWN.name};"
            " Device(flops_per_second=..., bytes_per_second=...) of the cluster says it",
        )

    def _costs(self, captured: Captured) -> Costs:
        if self._measures:
            return measure(captured)
        return estimate(captured, self._device if _is_known(self._device) else _UNKNOWN)


def check_source(costs: object) -> None:
    """Refuse what says nothing about where costs come from.

    Raises:
        OptionError: It is none of the three words.
    """
    require(
        costs in _SOURCES,
        what=f"costs is {costs!r}",
        why="it says where costs come from",
        mend=closest(str(costs), _SOURCES),
    )


def _is_known(device: Device) -> bool:
    return (device.flops_per_second or device.bytes_per_second) is not None
