# SPDX-License-Identifier: Apache-2.0
"""Ten models for tests of a split, five newer ones, some in other sizes, two that fit no machine.

All have random weights: nothing is loaded. Under `torch.device("meta")` they take no memory.

    specimen = zoo.tiny("gpt2")
    specimen.loss().backward()
"""

from __future__ import annotations

from collections.abc import Callable

from . import balance, big, divisible, small
from .specimen import Specimen, pad, seeded

__all__ = [
    "BALANCE",
    "BIG",
    "FIFTEEN",
    "TEN",
    "Specimen",
    "even",
    "large",
    "pad",
    "sized",
    "tiny",
]

TEN = tuple(small.MODELS)
BIG = tuple(big.MODELS)
FIFTEEN = tuple(divisible.MODELS)
BALANCE = tuple(balance.MODELS)


def tiny(name: str, *, rows: int = 4, dropout: float = 0.0, seed: int = 0) -> Specimen:
    """Return one of `TEN`, in train mode; forward and backward take tens of milliseconds."""
    return _made(small.MODELS[name], rows, dropout, seed)


def even(name: str, *, rows: int = 4, dropout: float = 0.0, seed: int = 0) -> Specimen:
    """Return one of `FIFTEEN`, in train mode; its heads and widths are divisible by 4."""
    return _made(divisible.MODELS[name], rows, dropout, seed)


def large(name: str, *, rows: int = 1) -> Specimen:
    """Return one of `BIG`; call this under `torch.device("meta")`."""
    return _made(big.MODELS[name], rows, 0.0, 0)


def sized(name: str, *, rows: int = 2) -> Specimen:
    """Return one of `BALANCE`, in a size that people train."""
    return _made(balance.MODELS[name], rows, 0.0, 0)


def _made(make: Callable[[int, float], Specimen], rows: int, dropout: float, seed: int) -> Specimen:
    with seeded(seed):
        specimen = make(rows, dropout)
    specimen.model.train()
    return specimen
