# SPDX-License-Identifier: Apache-2.0
"""Seeding of random functions, so that their numbers do not depend on how a model is split.

A process draws random numbers in the order in which its modules run, so dropout differs between one
process and two. Therefore, the generator is seeded anew before each random function. The seed is
made from the function's number in the forward pass, the step and the microbatch. So the function
draws the same numbers on any rank and in any order.

A module that `torch.compile` has compiled is seeded only once, before its first random function.
Its numbers are the same on every rank, but differ from those without compilation.

A checkpointed function runs again in the backward pass, and must draw the same numbers again. So
`follow_checkpoints` patches PyTorch's activation checkpoints permanently. Checkpoints of other
models behave as before.
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

from smdist.modelparallel.torch.accelerator import accelerator_module
from smdist.modelparallel.torch.program.program import Call, Program, RngCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RngStream:
    """Source of the random numbers of one microbatch in one step.

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
        """Return a context in which each random function of a call is seeded.

        After the block, the random generators have their earlier states again.

        Args:
            call: Recorded call of a module or function in the model's forward pass.
        """
        return _seeded(Seeding(self, call.rng))

    def seed_of(self, name: str) -> int:
        """Return the seed for the random function of this name, in this step and microbatch."""
        step = f"{self.step}+{self.repeat}" if self.repeat else self.step
        text = f"{self.seed}/{step}/{self.microbatch}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextmanager
def drawing(program: Program, draws: RngStream) -> Iterator[None]:
    """Seed the random functions of a whole model that runs in the block.

    These functions draw the same random numbers as when the model is split into stages.

    Args:
        program: Recorded forward pass of the model.
        draws: Seed, step and microbatch.
    """
    with _seeded(Seeding(draws, program.rng)):
        yield


class Seeding(TorchFunctionMode):
    """`TorchFunctionMode` that seeds the random generators before each random function.

    Args:
        draws: Source of the seeds: seed of the training run, step and microbatch.
        rng: Random functions to seed.
        done: Number of random functions that have run already.
    """

    def __init__(self, draws: RngStream, rng: RngCall, done: int = 0) -> None:
        super().__init__()
        self._draws, self._rng, self._done = draws, rng, done

    def start(self) -> None:
        """Seed the generators at the start of a call; compiled code is not seeded later."""
        seed_generators(self._draws.seed_of(f"{self._rng.first}:"))

    def again(self, function: Callable[..., Any], *, runs_here: int = 0) -> Callable[..., Any]:
        """Return a function that draws the same random numbers in every run, on any thread.

        A checkpointed function is wrapped in this way, since it runs again in the backward pass.

        Args:
            function: Function to run.
            runs_here: Number of first runs that happen while this `Seeding` is active. Only later
                runs are seeded anew.
        """
        done, runs = self._done, 0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs <= runs_here:
                return function(*args, **kwargs)
            with _seeded(Seeding(self._draws, self._rng, done)):
                return function(*args, **kwargs)

        return run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function and return its result; if it is random, seed the generators before it.

        PyTorch calls this for each function.
        """
        if func in self._rng.functions:
            seed_generators(self._draws.seed_of(self._rng.name(self._done)))
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
    """Return the innermost active seeding mode of this thread; None if there is none."""
    return _stack()[-1] if _stack() else None


def seed_generators(seed: int) -> None:
    """Set the seed of the random generators of the CPU and of the current device."""
    torch.default_generator.manual_seed(seed)
    module = accelerator_module()
    if module is not None:
        module.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the states of the CPU's and the current device's generators after the block."""
    module = accelerator_module()
    before = torch.get_rng_state()
    on_device = None if module is None else module.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_device is not None:
            module.set_rng_state(on_device)


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
_before: Any = vars(_between).get("apply")  # another patch, such as that of sliced sequences


def follow_checkpoints() -> None:
    """Patch activation checkpointing, so that recomputation draws the same random numbers again.

    The patch is permanent. Call this function only once.
    """
    vars(checkpoints)[_plain_generator.__name__] = _generator
    _between.apply = classmethod(_apply)


def _generator(function: Callable[..., Any], *settings: Any, **options: Any) -> Any:
    """Start an activation checkpoint whose recomputation draws the same random numbers again.

    PyTorch calls this function in place of its own `_checkpoint_without_reentrant_generator`.

    Args:
        function: Function that is recomputed in the backward pass.
        settings, options: Other arguments of PyTorch's function.
    """
    seeding = seeding_now()
    again = function if seeding is None else seeding.again(function)
    return _plain_generator(again, *settings, **options)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    seeding = seeding_now()
    if cls is CheckpointFunction and seeding is not None:
        args = (seeding.again(args[0], runs_here=1), *args[1:])
    if _before is not None:
        return _before.__func__(cls, *args, **kwargs)
    return super(_between, cls).apply(*args, **kwargs)
