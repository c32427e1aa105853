# SPDX-License-Identifier: Apache-2.0
"""Which functions draw random numbers, and how many of them run in each call.

A recorder sees the outermost functions of PyTorch alone, inside units too: dropout is one, and so
is attention with dropout in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn import functional

from smdist.modelparallel.torch.program import Call, Chance

Function = Callable[..., Any]
_KNOWN: Final[frozenset[Function]] = frozenset(  # these, and whatever is seen to draw
    [
        functional.dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        functional.alpha_dropout,
        functional.feature_alpha_dropout,
        functional.scaled_dot_product_attention,
        functional.multi_head_attention_forward,
        functional.rrelu,
        torch.bernoulli,
        torch.rand,
        torch.rand_like,
        torch.randn,
        torch.randn_like,
    ]
)


class Chances:
    """What one recording saw."""

    def __init__(self) -> None:
        self._functions: set[Function] = set(_KNOWN)
        self._now: list[Function] = []
        self._ran: dict[str, list[Function]] = {}

    @contextmanager
    def running(self, function: Function, draws: Sequence[str]) -> Iterator[None]:
        """A function runs; `draws` grows where it draws."""
        before = len(draws)
        self._now.append(function)
        yield
        if len(draws) > before:
            self._functions.add(function)

    def end_call(self, name: str) -> None:
        """What ran since the last call has run in this one."""
        self._ran[name] = self._now
        self._now = []

    def drop(self) -> None:
        """What ran since the last call runs again."""
        self._now = []

    def given_to(self, calls: Sequence[Call]) -> list[Call]:
        """The calls, all of them, with their chances."""
        functions, first, given = frozenset(self._functions), 0, []
        for call in calls:
            count = sum(function in functions for function in self._ran[call.name])
            chance = Chance(first=first, count=count, functions=functions)
            given.append(replace(call, chance=chance))
            first += count
        return given

    @property
    def of_all(self) -> Chance:
        """Of the whole forward pass."""
        functions = frozenset(self._functions)
        ran = (function for each in self._ran.values() for function in each)
        count = sum(function in functions for function in ran)
        return Chance(first=0, count=count, functions=functions)
