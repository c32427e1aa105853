# SPDX-License-Identifier: Apache-2.0
"""Case of the matrix: a model of the zoo, a pipeline, a schedule, replicas and training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import zoo
from torch import Tensor

from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.fingerprint import Fingerprint
from smdist.modelparallel.torch.capture import capture
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.verification.verify_request import placement_of

MICROBATCHES = 6  # over all replicas, so that one run of one process serves every case of a model
ROWS = 2 * MICROBATCHES
DROPOUT = 0.1
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Model with its split and training options.

    Attributes:
        model: The model's name in the zoo.
        ranks: Number of ranks of one pipeline.
        schedule: The schedule's name.
        virtual_stages: Number of stages on each rank.
        replicas: Number of data-parallel pipelines.
        sharding: "none", "optimizer" or "full": state that is sharded over replicas.
    """

    model: str
    ranks: int
    schedule: str
    virtual_stages: int = 1
    replicas: int = 1
    sharding: str = "none"

    @property
    def world(self) -> int:
        """Number of all ranks."""
        return self.ranks * self.replicas

    @property
    def num_stages(self) -> int:
        """Number of stages of one pipeline."""
        return self.ranks * self.virtual_stages

    @property
    def microbatches(self) -> int:
        """Number of microbatches of one replica."""
        return MICROBATCHES // self.replicas

    def __str__(self) -> str:
        more = "" if self.replicas == 1 else f" x {self.replicas} {self.sharding}"
        virtual = f" ({self.virtual_stages} a rank)" if self.virtual_stages > 1 else ""
        return f"{self.model}: {self.ranks} ranks{more}, {self.schedule}{virtual}"


def specimen_of(model: str) -> zoo.Specimen:
    """Return the model with dropout if it has any, with the same weights and batch every time."""
    return zoo.tiny(model, rows=ROWS, dropout=DROPOUT)


def batches(specimen: zoo.Specimen, steps: int) -> Iterator[Any]:
    """Yield the whole batch of each step; microbatches combine other samples every time."""
    for step in range(steps):
        yield _each(specimen.batch, lambda tensor, by=step: tensor.roll(by, 0))


def loss_of(output: Any) -> Tensor:
    """Return the model's own loss, or else the mean square of its output."""
    found = output.get("loss") if isinstance(output, dict) else None
    return output.square().mean() if found is None else found


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """Return AdamW, in which a step depends on all earlier ones."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def plan_of(case: Case, specimen: zoo.Specimen) -> Plan:
    """Return a plan with as many units in each stage."""
    graph = capture(specimen.model, Batch.of(specimen.batch).microbatch(MICROBATCHES)).graph
    placement = placement_of(graph, case.num_stages, None)
    stages: list[list[str]] = [[] for _ in range(case.num_stages)]
    for unit in placed_units(graph):
        stages[placement.stages[unit.name][0]].append(unit.name)
    return Plan(
        model=graph.model,
        pipeline_parallel_degree=case.ranks,
        data_parallel_degree=case.replicas,
        schedule=case.schedule,
        batch_size=ROWS // case.replicas,
        num_microbatches=case.microbatches,
        stages=tuple(map(tuple, stages)),
        virtual_stages=case.virtual_stages,
        ties=placement.ties,
        fingerprint=Fingerprint.of(graph),
    )


def _each(batch: Any, change: Any) -> Any:
    if isinstance(batch, dict):
        return {key: change(tensor) for key, tensor in batch.items()}
    return tuple(change(tensor) for tensor in batch)
