# SPDX-License-Identifier: Apache-2.0
"""Columns of the table: layouts, precisions and optimizers in which every model is tried."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.tensor_matrix.tools import TensorCase

BOUNDS = {"float64": 1e-9, "float32": 1e-5}  # largest relative difference of a gradient
LOSSES = {"sgd": 1e-5, "adamw": 1e-3}  # largest difference of a loss
# models whose norms, routers or scans compute in float32, also if the model is in float64
FLOAT32_INSIDE = (
    "t5",
    "llama",
    "mixtral",
    "qwen3_moe",
    "gemma3",
    "deepseek_v3",
    "gpt_oss",
    "mamba",
)


def bound(model: str, dtype: str) -> float:
    """Return the largest relative difference of a gradient that counts as equal."""
    return BOUNDS["float32" if model in FLOAT32_INSIDE else dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of the table: a way to run any model.

    Attributes:
        title: The column's heading.
        tensor, stages, replicas, dtype, optimizer, dropout: As in `TensorCase`.
        steps: Number of steps; None for that of the command line.
    """

    title: str
    tensor: int = 2
    stages: int = 1
    replicas: int = 1
    dtype: str = "float32"
    optimizer: str = "sgd"
    dropout: float = 0.0
    steps: int | None = None

    def case(self, model: str) -> TensorCase:
        """Return the case of this column for a model."""
        return TensorCase(
            model=model,
            tensor=self.tensor,
            stages=self.stages,
            replicas=self.replicas,
            dtype=self.dtype,
            optimizer=self.optimizer,
            dropout=self.dropout,
        )


COLUMNS = (
    Column(title="T 2, float64", dtype="float64", steps=2),
    Column(title="T 4, float64", tensor=4, dtype="float64", steps=2),
    Column(title="T 2, SGD"),
    Column(title="T 2, AdamW", optimizer="adamw"),
    Column(title="T 2, dropout", dropout=0.1),
    Column(title="T 2 x P 2", stages=2),
    Column(title="T 2 x D 2", replicas=2),
    Column(title="T 2 x P 2 x D 2", stages=2, replicas=2),
)
