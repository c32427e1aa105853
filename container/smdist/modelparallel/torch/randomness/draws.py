# SPDX-License-Identifier: Apache-2.0
"""Random numbers that do not depend on how a model is split.

A process draws random numbers in the order in which its modules run, so dropout differs between one
process and two. Here each function that draws has a generator state of its own, made from its
number in the forward pass, the step and the microbatch. Whoever runs it, in whatever order and
inside whatever unit, draws the same.

A unit that `torch.compile` has compiled draws from one state, that of its first function: its
numbers are the same wherever it runs, and others than those of the modules in it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smdist.modelparallel.torch.program import Call, Chance, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Where random numbers come from: pass `around` to what runs calls.

    Attributes:
        seed: Of the whole training run.
        step: The optimizer's.
        microbatch: Its number in the batch of all data-parallel replicas.
        repeat: Forward passes before this one that were no steps, since the last step.
    """

    seed: int = 0
    step: int = 0
    microbatch: int = 0
    repeat: int = 0

    def around(self, call: Call) -> AbstractContextManager[None]:
        """Within it, each function draws its own numbers; after it, generators are as before."""
        return _seeded(Seeding(self, call.chance))

    def seed_of(self, name: str) -> int:
        """What the generators start from for what has this name."""
        step = f"{self.step}+{self.repeat}" if self.repeat else self.step
        text = f"{self.seed}/{step}/{self.microbatch}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextmanager
def drawing(program: Program, draws: Draws) -> Iterator[None]:
    """Within it, the unsplit model draws the numbers that its program draws."""
    with _seeded(Seeding(draws, program.chance)):
        yield


class Seeding(TorchFunctionMode):
    """Seeds the generators for each function that may draw.

    Args:
        draws: The step and microbatch.
        chance: What is to be drawn.
        done: How many of its functions have run.
    """

    def __init__(self, draws: Draws, chance: Chance, done: int = 0) -> None:
        super().__init__()
        self._draws, self._chance, self._done = draws, chance, done

    def start(self) -> None:
        """Seed them for what draws unseen."""
        seed_generators(self._draws.seed_of(f"{self._chance.first}:"))

    def again(self, function: Callable[..., Any], *, runs_here: int = 0) -> Callable[..., Any]:
        """Draws what it would draw now, each time that it runs, on any thread.

        Args:
            runs_here: How many times it runs first as any function does, while this is entered.
        """
        done, runs = self._done, 0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs <= runs_here:
                return function(*args, **kwargs)
            with _seeded(Seeding(self._draws, self._chance, done)):
                return function(*args, **kwargs)

        return run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """PyTorch calls this for each of its functions."""
        if func in self._chance.functions:
            seed_generators(self._draws.seed_of(self._chance.name(self._done)))
            self._done += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Seeding:
        _stack().append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        _stack().pop()


def seeding_now() -> Seeding | None:
    """The innermost that is entered on this thread."""
    return _stack()[-1] if _stack() else None


def seed_generators(seed: int) -> None:
    """Those of the CPU and of the current GPU."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """After it, they are as before; other GPUs' stay out of it."""
    has_gpu = torch.cuda.is_available()
    before = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if has_gpu else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)


@contextmanager
def _seeded(seeding: Seeding) -> Iterator[None]:
    with generators_kept(), seeding:
        seeding.start()
        yield


_entered = threading.local()


def _stack() -> list[Seeding]:
    stack: list[Seeding] = _entered.__dict__.setdefault("stack", [])
    return stack
