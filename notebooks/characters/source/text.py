# SPDX-License-Identifier: Apache-2.0
"""Batches of a text; each depends on the number of the step only, so that a run can be resumed."""

from pathlib import Path

import torch

from net import LENGTH


def load(folder: Path) -> torch.Tensor:
    """Return the text as ASCII codes [n]; other characters become question marks."""
    text = (folder / "text.txt").read_text(encoding="utf-8")
    return torch.tensor(list(text.encode("ascii", errors="replace")))


def batch(text, step: int, size: int):
    """Return the inputs and targets of a step for all replicas, each [size, LENGTH].

    Targets are the inputs shifted by one character.
    """
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (size,), generator=generator)
    rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]
