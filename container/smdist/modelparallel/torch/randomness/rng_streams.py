# SPDX-License-Identifier: Apache-2.0
"""Random numbers that do not depend on how a model is split.

A process draws random numbers in the order in which its modules run, so dropout differs between one
process and two. Here each function that draws gets a generator state of its own, made from the
function's number in the forward pass, the step and the microbatch. The function then draws the same
numbers on any rank, in any order and inside any unit.

A unit that `torch.compile` has compiled draws from one state, that of its first function. Its
numbers are the same on every rank, but differ from those of its modules without compilation.

A checkpointed function draws the same random numbers when it is computed again.
`torch.utils.checkpoint` resets the generators and runs the function once more in the backward pass,
when the seeding of the forward pass has ended. `follow_checkpoints` therefore replaces the entry
points of PyTorch's checkpoints, permanently; where nothing seeds, PyTorch's behavior is unchanged.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.function as functions
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointFunction

from smdist.modelparallel.torch.program.program import Call, Program, RngCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RngStream:
    """Source of random numbers; pass `around` to the code that runs calls.

    Attributes:
        seed: Seed of the whole training run.
        step: Number of the optimizer step.
        microbatch: Number of the microbatch in the batch of all data-parallel replicas.
        repeat: Number of forward passes outside of steps since the last step.
    """

    seed: int = 0
    step: int = 0
    microbatch: int = 0
    repeat: int = 0

    def around(self, call: Call) -> AbstractContextManager[None]:
        """Seed each function of a call within the block; restore the generators after it."""
        return _seeded(Seeding(self, call.chance))

    def seed_of(self, name: str) -> int:
        """Return the seed for this name, in this step and microbatch."""
        step = f"{self.step}+{self.repeat}" if self.repeat else self.step
        text = f"{self.seed}/{step}/{self.microbatch}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextmanager
def drawing(program: Program, draws: RngStream) -> Iterator[None]:
    """Make the unsplit model draw, within the block, the numbers that its program draws."""
    with _seeded(Seeding(draws, program.chance)):
        yield


class Seeding(TorchFunctionMode):
    """Mode that seeds the generators before each function that may draw.

    Args:
        draws: Step and microbatch.
        chance: Functions that may draw, with their numbers in the forward pass.
        done: Number of these functions that have run.
    """

    def __init__(self, draws: RngStream, chance: RngCall, done: int = 0) -> None:
        super().__init__()
        self._draws, self._chance, self._done = draws, chance, done

    def start(self) -> None:
        """Seed the generators for functions that draw unseen."""
        seed_generators(self._draws.seed_of(f"{self._chance.first}:"))

    def again(self, function: Callable[..., Any], *, runs_here: int = 0) -> Callable[..., Any]:
        """Return a function that draws the numbers of now whenever it runs, on any thread.

        Args:
            runs_here: Number of first runs without seeding of their own, since this mode is active.
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
        """Seed before a function that draws; PyTorch calls this for each of its functions."""
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
    """Return the innermost active mode of this thread."""
    return _stack()[-1] if _stack() else None


def seed_generators(seed: int) -> None:
    """Seed the generators of the CPU and of the current GPU."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators of the CPU and the current GPU after the block."""
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


_plain_generator: Any = checkpoints._checkpoint_without_reentrant_generator
_between: Any = functions._SingleLevelFunction


def follow_checkpoints() -> None:
    """Replace the entry points of PyTorch's checkpoints, permanently; call once."""
    vars(checkpoints)[_plain_generator.__name__] = _generator
    _between.apply = classmethod(_apply)


def _generator(function: Callable[..., Any], *settings: Any, **options: Any) -> Any:
    """Give PyTorch a function for the second run that draws the numbers of the first run."""
    seeding = seeding_now()
    again = function if seeding is None else seeding.again(function)
    return _plain_generator(again, *settings, **options)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    seeding = seeding_now()
    if cls is CheckpointFunction and seeding is not None:
        args = (seeding.again(args[0], runs_here=1), *args[1:])
    return super(_between, cls).apply(*args, **kwargs)
