# SPDX-License-Identifier: Apache-2.0
"""Cases of the matrix: ten models on pipelines, five of them also on two replicas."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pipeline_matrix.tools import Case

RANKS = (2, 3, 4)
REPLICATED = ("gpt2", "llama", "bert", "resnet", "whisper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of the table: a way to run any model.

    Attributes:
        title: The column's heading.
        schedule: The name of the schedule.
        virtual_stages: Number of stages on each rank.
    """

    title: str
    schedule: str
    virtual_stages: int = 1


COLUMNS = (
    Column(title="interleaved", schedule="interleaved"),
    Column(title="1F1B", schedule="1f1b"),
    Column(title="interleaved 1F1B", schedule="interleaved_1f1b", virtual_stages=2),
    Column(title="zero bubble V", schedule="zero_bubble_v", virtual_stages=2),
)
REPLICAS = {"replicated": "none", "FSDP2, optimizer": "optimizer", "FSDP2, full": "full"}


def pipelines(models: list[str]) -> dict[tuple[str, int, str], Case]:
    """Return the cases on one pipeline by model, number of ranks and title of the column."""
    return {
        (model, ranks, column.title): Case(
            model=model,
            ranks=ranks,
            schedule=column.schedule,
            virtual_stages=column.virtual_stages,
        )
        for column in COLUMNS
        for ranks in RANKS
        for model in models
    }


def replicated(models: list[str]) -> dict[tuple[str, str], Case]:
    """Return the cases on two pipelines of two ranks, by model and sharding of the replicas."""
    return {
        (model, title): Case(
            model=model, ranks=2, schedule="interleaved", replicas=2, sharding=sharding
        )
        for title, sharding in REPLICAS.items()
        for model in models
        if model in REPLICATED
    }
