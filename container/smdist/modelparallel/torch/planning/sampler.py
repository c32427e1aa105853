# SPDX-License-Identifier: Apache-2.0
"""Graphs and costs of a model, at each size of microbatch that the planner tries."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from torch import nn

from sagemaker_dist.errors import closest, require
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.note import UNKNOWN_SPEED, UNTRIED_SIZE, Note
from smdist.modelparallel.core.plan.number_format import size
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.torch.accelerator import empty_cache
from smdist.modelparallel.torch.capture import Captured, CaptureError, capture
from smdist.modelparallel.torch.measure import estimate, measure, with_slices
from smdist.modelparallel.torch.measure.memory_estimate import (
    free_bytes,
    is_out_of_memory,
    largest_unit_bytes,
    measuring_bytes,
)
from smdist.modelparallel.torch.program.batch import Batch

_log = logging.getLogger(__name__)
_SOURCES: Final = ("auto", "measure", "estimate")
_UNKNOWN: Final = Device(
    name="a device of 1 TFLOP/s and 100 GB/s", flops_per_second=1e12, bytes_per_second=100e9
)
_BUDGET_SECONDS: Final = 60.0  # for all measurements; after that, each kind of unit is timed once
_Key = tuple[int, frozenset[str]]


class CostSource(Protocol):
    """Source of a model's graphs and costs, for each size of microbatch."""

    @property
    def measures(self) -> bool:
        """True if the costs are measured."""

    def at(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Graph, Costs]:
        """Return the graph and the costs for one microbatch."""

    def note(self, error: SizeError) -> Note:
        """Return a note that says why a size of microbatch was not tried."""

    def notes(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Note, ...]:
        """Return the notes from the recording of the forward pass."""


class Sampler:
    """Source of a model's graphs and costs, each of which is computed once and stored.

    Attributes:
        measures: True if units are measured, False if their costs are estimated.

    Args:
        model: The model.
        batch: Batch of one replica.
        cluster: Cluster whose device the costs are for.
        costs: "measure", "estimate" or "auto". "auto" estimates a model on the meta device, and
            measures any other model. To measure a model on the meta device, each unit gets random
            weights for the time of its measurement.
        memory_bytes: Memory that a rank may use; None if unknown.

    Raises:
        OptionError: `costs` is not "measure", "estimate" or "auto".
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        batch: Batch,
        cluster: Cluster,
        costs: str,
        memory_bytes: int | None = None,
    ) -> None:
        on_meta = any(each.is_meta for each in model.parameters())
        check_source(costs)
        self._model, self._batch = model, batch
        self.measures = costs == "measure" or (costs == "auto" and not on_meta)
        self._device, self._ranks = cluster.device, cluster.size
        self._limit = memory_bytes
        self._left = _BUDGET_SECONDS
        self._known: dict[_Key, tuple[Graph, Costs]] = {}
        self._took: dict[_Key, float] = {}
        self._notes: dict[_Key, tuple[Note, ...]] = {}

    def at(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Graph, Costs]:
        """Return the graph and the costs of the model for one microbatch.

        Args:
            num_microbatches: Number of equal parts that the batch is split into.
            opened: Names of modules that are divided into the modules inside them.

        Raises:
            CaptureError: The model's forward pass cannot be recorded.
            SizeError: A microbatch cannot be recorded, or needs too much memory.
        """
        key = (num_microbatches, opened)
        if key not in self._known:
            self._refuse_large(num_microbatches, opened)
            begin = time.perf_counter()
            captured = self._capture(num_microbatches, opened)
            costs = self._costs(captured, num_microbatches, opened)
            took = time.perf_counter() - begin
            words = "%s: %d units, %s, in %.1f s"
            title = f"{captured.graph.model} with {self._title(num_microbatches, opened)}"
            _log.info(words, title, len(captured.graph.units), costs.source, took)
            self._known[key], self._took[key] = (captured.graph, costs), took
            self._notes[key] = captured.notes
        return self._known[key]

    def _samples(self, num_microbatches: int) -> int:
        return self._batch.size // num_microbatches

    def _title(self, num_microbatches: int, opened: frozenset[str]) -> str:
        title = f"microbatches of {self._samples(num_microbatches)}"
        return f"{title}, opened {', '.join(sorted(opened))}" if opened else title

    def _capture(self, num_microbatches: int, opened: frozenset[str]) -> Captured:
        """Record the model's forward pass for one microbatch.

        If this fails, the whole batch is tried, to find the cause of the failure.

        Args:
            num_microbatches: Number of equal parts that the batch is split into.
            opened: Names of modules that are divided into the modules inside them.

        Raises:
            SizeError: The microbatch fails, but the whole batch does not.
            CaptureError: The failure has another cause than the size of the microbatch.
        """
        example = self._batch.microbatch(num_microbatches)
        try:
            return with_slices(capture(self._model, example, opened=opened))
        except CaptureError as error:
            if num_microbatches == 1 or any(many == num_microbatches for many, _ in self._known):
                raise
            capture(self._model, self._batch.example, opened=opened)
            raise self._size_error(num_microbatches, f"{error.what}: {error.why}") from error

    def _size_error(self, num_microbatches: int, why: str, kind: str = "") -> SizeError:
        samples = self._samples(num_microbatches)
        name = type(self._model).__name__
        error = SizeError(
            f"{name} cannot be planned with microbatches of {samples} of your"
            f" {self._batch.size} samples",
            why,
            "Pass another number as microbatches=; fewer microbatches have more samples each",
            about="microbatches",
            kind=kind,
        )
        error.num_microbatches = num_microbatches
        return error

    def _refuse_large(self, num_microbatches: int, opened: frozenset[str]) -> None:
        """Raise SizeError if a microbatch would need too much memory.

        The memory is estimated from a smaller microbatch that was measured; without one, there is
        no check.

        Args:
            num_microbatches: Number of equal parts that the batch is split into.
            opened: Names of modules that are divided into the modules inside them.
        """
        smaller = [many for many, of in self._known if of == opened and many > num_microbatches]
        if not self.measures or not smaller:
            return
        nearest = min(smaller)
        graph, costs = self._known[nearest, opened]
        factor = nearest / num_microbatches
        needed = largest_unit_bytes(graph, costs, factor)
        if self._limit is not None and needed > self._limit:
            why = f"a unit would need {size(needed)}, and device_memory is {size(self._limit)}"
            raise self._size_error(num_microbatches, why, "memory")
        free, needed = free_bytes(self._model), measuring_bytes(graph, costs, factor)
        if free is not None and needed > free:
            why = f"measuring it would take {size(needed)}, and {size(free)} are free here"
            raise self._size_error(num_microbatches, why, "machine_memory")

    def note(self, error: SizeError) -> Note:
        """Return a note that says why a size of microbatch was not tried.

        Args:
            error: Error that was raised for this size.
        """
        samples = self._samples(error.num_microbatches)
        count = f"{samples} sample{'s' if samples > 1 else ''}"
        return Note(UNTRIED_SIZE, f"Microbatches of {count} were not tried: {error.why}")

    def notes(self, num_microbatches: int, opened: frozenset[str]) -> tuple[Note, ...]:
        """Return the notes from the recording of the forward pass, for the plan.

        If costs are estimated for a device of unknown speed, one more note says so.

        Args:
            num_microbatches: Number of equal parts that the batch is split into.
            opened: Names of modules that are divided into the modules inside them.
        """
        found = self._notes.get((num_microbatches, opened), ())
        if self.measures or _is_known(self._device):
            return found
        return (
            *found,
            Note(
                UNKNOWN_SPEED,
                f"The speed of {self._device.name} is not known, so times are those of"
                f" {_UNKNOWN.name}: give the cluster a"
                " Device(flops_per_second=..., bytes_per_second=...)",
            ),
        )

    def _costs(self, captured: Captured, num_microbatches: int, opened: frozenset[str]) -> Costs:
        if not self.measures:
            return estimate(captured, self._device if _is_known(self._device) else _UNKNOWN)
        begin, why, kind = time.perf_counter(), "", ""
        title = self._title(num_microbatches, opened) + self._expected(num_microbatches, opened)
        try:
            return measure(captured, budget_seconds=self._left / 2, title=title)
        except Exception as error:  # the model may raise any error on these samples
            text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if is_out_of_memory(error):
                why = f"this machine has too little memory to measure it ({text})"
                kind = "machine_memory"
            elif num_microbatches == 1:
                raise
            else:
                why = f"measuring it failed ({text})"
        finally:
            self._left = max(0.0, self._left - (time.perf_counter() - begin))
        empty_cache()
        raise self._size_error(num_microbatches, why, kind)

    def _expected(self, num_microbatches: int, opened: frozenset[str]) -> str:
        """Return the longest time that measuring may take, for progress lines: " (up to 12 s)".

        The time is estimated from a smaller microbatch. The result is "" if no smaller one was
        measured.

        Args:
            num_microbatches: Number of equal parts that the batch is split into.
            opened: Names of modules that are divided into the modules inside them.
        """
        known = [(many, took) for (many, of), took in self._took.items() if of == opened]
        least = min((each for each in known if each[0] > num_microbatches), default=None)
        return f" (up to {least[1] * least[0] / num_microbatches:.0f} s)" if least else ""


def check_source(costs: object) -> None:
    """Check that `costs` names a source of costs.

    Raises:
        OptionError: `costs` is not "auto", "measure" or "estimate".
    """
    require(
        costs in _SOURCES,
        what=f"costs is {costs!r}",
        why="it has to be a source of costs: 'auto', 'measure' or 'estimate'",
        hint=closest(str(costs), _SOURCES),
        about="costs",
    )


def _is_known(device: Device) -> bool:
    return (device.flops_per_second or device.bytes_per_second) is not None
