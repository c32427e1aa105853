# SPDX-License-Identifier: Apache-2.0
"""Batches of a text, chosen by the step alone, so that any run can continue any other."""

from pathlib import Path

import torch

from net import LENGTH


def load(folder: Path) -> torch.Tensor:
    """Return the whole text as numbers below 128; other characters become question marks."""
    text = (folder / "text.txt").read_text(encoding="utf-8")
    return torch.tensor(list(text.encode("ascii", errors="replace")))


def batch(text, step: int, size: int):
    """Return the batch of a step for all replicas: rows of characters and the next characters."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (size,), generator=generator)
    rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]
