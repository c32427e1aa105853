# SPDX-License-Identifier: Apache-2.0
"""Predictions of layouts with measured costs of the model, as the search for layouts makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.plan_accuracy.models import BATCH, batch, made
from smdist.modelparallel.core.calibration import Calibration
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout import Layout, Machine, Prediction, TrainingNeeds
from smdist.modelparallel.core.layout.from_graph import (
    MicrobatchCosts,
    checkpointed,
    layers_between,
)
from smdist.modelparallel.core.layout.layout_evaluator import LayoutEvaluator
from smdist.modelparallel.core.layout.measured_machine import measured_machine
from smdist.modelparallel.core.layout.training_needs import PRECISIONS
from smdist.modelparallel.torch.planning.sampler import Sampler
from smdist.modelparallel.torch.program.batch import Batch

_LATENCY: Final = 200e-6  # of a message over TCP between namespaces, an assumption
_PAYLOAD: Final = 1448 / 1538  # of a frame of Ethernet with TCP over IPv4


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Prediction of a layout, and the modules that it checkpoints.

    Attributes:
        prediction: Seconds and bytes.
        checkpointed: Names of modules.
    """

    prediction: Prediction
    checkpointed: tuple[str, ...]


def machine_of(calibration: Calibration, bits_per_second: float) -> Machine:
    """Return two hosts of one rank, with the calibration's speeds and a link of this rate."""
    link = Link(latency_seconds=_LATENCY, bytes_per_second=bits_per_second / 8 * _PAYLOAD)
    cluster = calibration.applied_to(Cluster(num_hosts=2, across=link))
    return measured_machine(replace(cluster, across=link), calibration)


def predict(name: str, layouts: Sequence[Layout], machine: Machine, costs: str) -> list[Predicted]:
    """Return the prediction of a model's training with each layout.

    Args:
        name: Name of the model.
        layouts: The layouts.
        machine: Machine from `machine_of`.
        costs: "measure" to run the model's layers here, or "estimate" for costs from operations.
    """
    sampler = Sampler(
        model=made(name), batch=Batch.of((batch(name),)), cluster=machine.cluster, costs=costs
    )
    small, large = (
        MicrobatchCosts(graph=graph, costs=costs, samples=BATCH // count)
        for count in (BATCH, 1)
        for graph, costs in [sampler.at(count, frozenset())]
    )
    needs = TrainingNeeds(
        batch_per_replica=BATCH, precision=PRECISIONS["float32"], reduction="auto"
    )
    evaluator = LayoutEvaluator(layers_between(small, large, machine), machine, needs)
    return [_predicted(evaluator, layout, small) for layout in layouts]


def _predicted(evaluator: LayoutEvaluator, layout: Layout, small: MicrobatchCosts) -> Predicted:
    found = evaluator.predict(layout)
    assert isinstance(found, Prediction)  # memory has no limit
    names: tuple[str, ...] = ()
    if layout.checkpointing != "none":
        names = checkpointed(small.graph, small.costs, layout.checkpointing)
    return Predicted(prediction=found, checkpointed=names)
