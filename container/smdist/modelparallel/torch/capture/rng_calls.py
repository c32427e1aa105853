# SPDX-License-Identifier: Apache-2.0
"""Counter of the functions that draw random numbers in a forward pass.

A function that runs inside another function of PyTorch is not counted. An attention function that
uses dropout internally counts as one function.
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
# other functions are added to these if they draw a random number during capture
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
    """Functions of PyTorch that ran in each recorded call, and which of them are random."""

    def __init__(self) -> None:
        self._functions: set[Function] = set(_KNOWN)
        self._now: list[Function] = []
        self._ran: dict[str, list[Function]] = {}

    @contextmanager
    def running(self, function: Function, draws: Sequence[str]) -> Iterator[None]:
        """Note that a function runs in the block, and find out whether it draws random numbers.

        Args:
            function: The function.
            draws: List to which random operations add their names. If it grows within the block,
                the function draws random numbers.
        """
        before = len(draws)
        self._now.append(function)
        yield
        if len(draws) > before:
            self._functions.add(function)

    def end_call(self, name: str) -> None:
        """End a recorded call: all functions since the last `end_call` ran in this call.

        Args:
            name: Name of the recorded call.
        """
        self._ran[name] = self._now
        self._now = []

    def drop(self) -> None:
        """Forget the functions that ran since the last `end_call`.

        Use this if a call failed and starts again; otherwise its functions would count twice.
        """
        self._now = []

    def add_to(self, calls: Sequence[Call]) -> list[Call]:
        """Return copies of the calls, with the random functions of each call in the field `rng`."""
        functions, first, found = frozenset(self._functions), 0, []
        for call in calls:
            count = sum(function in functions for function in self._ran[call.name])
            rng = RngCall(first=first, count=count, functions=functions)
            found.append(replace(call, rng=rng))
            first += count
        return found

    @property
    def whole_pass(self) -> RngCall:
        """Random functions of the whole forward pass, such as its dropouts."""
        functions = frozenset(self._functions)
        ran = (function for each in self._ran.values() for function in each)
        count = sum(function in functions for function in ran)
        return RngCall(first=0, count=count, functions=functions)
