# SPDX-License-Identifier: Apache-2.0
"""Case of the tensor matrix: a model of the zoo, degrees, precision and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import zoo
from matrix.case import batches
from torch import Tensor

MICROBATCHES = 4  # over all replicas, so that one run of one process serves every layout
ROWS = MICROBATCHES
TYPES = {"float64": torch.float64, "float32": torch.float32}
LEARNING_RATES = {"sgd": 0.05, "adamw": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCase:
    """Model with its layout and training options.

    Attributes:
        model: The model's name in the zoo.
        tensor: Number of ranks over which each layer is split.
        stages: Number of stages of the pipeline.
        replicas: Number of replicas of all these ranks.
        dtype: "float64" or "float32".
        optimizer: "sgd", with momentum, or "adamw".
        dropout: Rate of dropout, where the model has it.
        sequence: True to split sequences between split layers, too.
    """

    model: str
    tensor: int = 2
    stages: int = 1
    replicas: int = 1
    dtype: str = "float32"
    optimizer: str = "sgd"
    dropout: float = 0.0
    sequence: bool = False

    @property
    def world(self) -> int:
        """Number of all ranks."""
        return self.tensor * self.stages * self.replicas

    @property
    def training(self) -> tuple[str, str, str, float]:
        """What is equal for cases that train the same way, on any layout."""
        return self.model, self.dtype, self.optimizer, self.dropout

    def __str__(self) -> str:
        layout = f"T{self.tensor} P{self.stages} D{self.replicas}"
        dropout = f", dropout {self.dropout}" if self.dropout else ""
        sequence = ", sequence" if self.sequence else ""
        return f"{self.model}: {layout}, {self.dtype}, {self.optimizer}{dropout}{sequence}"


def specimen_of(case: TensorCase) -> zoo.Specimen:
    """Return the model and its batch, with the same values every time."""
    found = zoo.even(case.model, rows=ROWS, dropout=case.dropout)
    found.model.to(TYPES[case.dtype])
    return zoo.Specimen(model=found.model, batch=_cast(found.batch, TYPES[case.dtype]))


def steps_of(specimen: zoo.Specimen, steps: int) -> Iterator[Any]:
    """Yield the whole batch of each step; microbatches combine other samples every time."""
    yield from batches(specimen, steps)


def optimizer_of(case: TensorCase, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer, in which a step depends on all earlier ones."""
    rate = LEARNING_RATES[case.optimizer]
    if case.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    if isinstance(batch, dict):
        return {key: cast(tensor) for key, tensor in batch.items()}
    return tuple(map(cast, batch))
