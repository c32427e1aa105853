# SPDX-License-Identifier: Apache-2.0
"""Specimen of the zoo: a model with random weights and one batch that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """Model with its batch: positional arguments as a tuple, keyword arguments as a dict."""

    model: nn.Module
    batch: tuple[Any, ...] | dict[str, Any]

    def run(self) -> Any:
        """Return the model's output for the batch."""
        if isinstance(self.batch, Mapping):
            return self.model(**self.batch)
        return self.model(*self.batch)

    def loss(self) -> Tensor:
        """Return the model's own loss, or else the mean square of its output."""
        output = self.run()
        found = output.get("loss") if isinstance(output, Mapping) else None
        return output.square().mean() if found is None else found


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make weights and batches the same every time; restore the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tokens(rows: int, length: int, vocabulary: int) -> Tensor:
    """Return token ids of at least 3, because smaller ones have special meanings in some models."""
    return torch.randint(3, vocabulary, (rows, length))


def labelled(rows: int, length: int, vocabulary: int) -> dict[str, Tensor]:
    """Return token ids that are their own labels, and a mask that hides nothing."""
    ids = tokens(rows, length, vocabulary)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def pad(batch: dict[str, Any]) -> None:
    """Mask the last third of every other row, and leave it out of the loss."""
    length = batch["input_ids"].shape[1]
    hidden = slice(length - length // 3, None)
    batch["attention_mask"][::2, hidden] = 0
    batch["labels"][::2, hidden] = -100
