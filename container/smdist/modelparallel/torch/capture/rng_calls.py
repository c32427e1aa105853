# SPDX-License-Identifier: Apache-2.0
"""Functions that draw random numbers, and how many of them run in each call.

A recorder sees only the outermost functions of PyTorch, inside units too. Dropout is one function;
attention with dropout inside is one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn import functional

from smdist.modelparallel.torch.program.program import Call, RngCall

Function = Callable[..., Any]
# more functions are added when they are seen to draw
_KNOWN: Final[frozenset[Function]] = frozenset(
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


class RngCalls:
    """Functions that ran in one recording, by call."""

    def __init__(self) -> None:
        self._functions: set[Function] = set(_KNOWN)
        self._now: list[Function] = []
        self._ran: dict[str, list[Function]] = {}

    @contextmanager
    def running(self, function: Function, draws: Sequence[str]) -> Iterator[None]:
        """Note that a function runs; it is random if `draws` becomes longer meanwhile."""
        before = len(draws)
        self._now.append(function)
        yield
        if len(draws) > before:
            self._functions.add(function)

    def end_call(self, name: str) -> None:
        """End a call: all functions since the end of the last call ran in it."""
        self._ran[name] = self._now
        self._now = []

    def drop(self) -> None:
        """Forget the functions since the end of the last call, which will run again."""
        self._now = []

    def given_to(self, calls: Sequence[Call]) -> list[Call]:
        """Return copies of the calls, each with the random functions that it runs."""
        functions, first, given = frozenset(self._functions), 0, []
        for call in calls:
            count = sum(function in functions for function in self._ran[call.name])
            chance = RngCall(first=first, count=count, functions=functions)
            given.append(replace(call, chance=chance))
            first += count
        return given

    @property
    def of_all(self) -> RngCall:
        """Return the random functions of the whole forward pass."""
        functions = frozenset(self._functions)
        ran = (function for each in self._ran.values() for function in each)
        count = sum(function in functions for function in ran)
        return RngCall(first=0, count=count, functions=functions)
