# SPDX-License-Identifier: Apache-2.0
"""Batches of a text: the step alone says which, so any run can go on with any other's."""

from pathlib import Path

import torch

from net import LENGTH


def load(folder: Path) -> torch.Tensor:
    """The whole text as numbers below 128; other characters are question marks."""
    text = (folder / "text.txt").read_text(encoding="utf-8")
    return torch.tensor(list(text.encode("ascii", errors="replace")))


def batch(text, step: int, size: int):
    """What all replicas together see in a step: rows of characters, and what follows each."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (size,), generator=generator)
    rows = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]
