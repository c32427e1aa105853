# SPDX-License-Identifier: Apache-2.0
"""Random numbers that do not depend on how a model is split.

A process draws random numbers in the order in which its modules run, so dropout differs between one
process and two. Here each call has a generator state of its own, made from the call's name, the
step and the microbatch. Whoever runs it, in whatever order, draws the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from smdist.modelparallel.torch.capture.patches import recording
from smdist.modelparallel.torch.capture.titles import title_of
from smdist.modelparallel.torch.program import Call, Program
from smdist.modelparallel.torch.tree import flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Where random numbers come from: pass `around` to what runs calls.

    Attributes:
        seed: Of the whole training run.
        step: The optimizer's.
        microbatch: Its number in the batch of all data-parallel replicas.
    """

    seed: int = 0
    step: int = 0
    microbatch: int = 0

    def around(self, call: Call) -> AbstractContextManager[None]:
        """Within it, generators start where this call's start; after it, where they were."""
        return _seeded(self.seed_of(call.name))

    def seed_of(self, name: str) -> int:
        """What the generators start from for the call of this name."""
        text = f"{self.seed}/{self.step}/{self.microbatch}/{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextmanager
def drawing(program: Program, model: nn.Module, draws: Draws) -> Iterator[None]:
    """Within it, the unsplit model draws the numbers that its program draws."""
    with recording(_Follower(program, model, draws), model):
        yield


class _Follower(TorchFunctionMode):
    """Counts calls as the recorder did, so that each has its name again."""

    def __init__(self, program: Program, model: nn.Module, draws: Draws) -> None:
        super().__init__()
        self._draws, self._calls = draws, program.call
        self._names = {id(module): name for name, module in model.named_modules()}
        self._units = {call.module for call in program.calls if call.is_unit}
        self._glue = {call.name.partition("@")[0] for call in program.calls}
        self._stack: list[nn.Module] = []
        self._owners: list[str] = []
        self._quiet = 0
        self._is_aside = False
        self._count: Counter[str] = Counter()

    @property
    def is_quiet(self) -> bool:
        return self._quiet > 0

    def knows(self, module: nn.Module) -> bool:
        return id(module) in self._names

    def is_passing(self, module: nn.Module, level: type) -> bool:
        return bool(self._stack) and self._stack[-1] is module and level is nn.Module

    def module(
        self, run: Callable[..., Any], module: nn.Module, arguments: Any, *, level: type
    ) -> Any:
        name = self._names[id(module)]
        if name in self._units:
            return self._numbered(name, lambda: run(module, *arguments[0], **arguments[1]))
        self._owners.append(name)
        if level is not nn.Module:
            self._stack.append(module)
        try:
            return run(module, *arguments[0], **arguments[1])
        finally:
            self._owners.pop()
            if level is not nn.Module:
                self._stack.pop()

    def function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        title = f"{self._owners[-1] if self._owners else ''}:{title_of(function)}"
        return self._numbered(title, lambda: function(*args, **kwargs))

    def checkpointed(
        self, function: Callable[..., Any], settings: dict[str, Any]
    ) -> Callable[..., Any]:
        """Each time it runs again, calls have the same names again."""
        start, owners = self._count.copy(), list(self._owners)
        is_again = not settings["use_reentrant"]  # PyTorch runs the first time without us then

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_again
            if not is_again:
                is_again = True
                return function(*args, **kwargs)
            before = self._count, self._owners
            self._count, self._owners = start.copy(), list(owners)
            try:
                with self if self._is_aside else nullcontext():
                    return function(*args, **kwargs)
            finally:
                self._count, self._owners = before

        return run

    def leave_checkpoint(self) -> None:
        """Never needed: checkpoints are real here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.backward or func is Tensor.backward:
            return self._backward(func, args, kwargs or {})
        if self._quiet:
            return func(*args, **(kwargs or {}))
        return self.function(func, args, kwargs or {})

    def _backward(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """In it, PyTorch has put this mode aside, and checkpoints run functions again."""
        self._is_aside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_aside = False

    def _numbered(self, title: str, run: Callable[[], Any]) -> Any:
        number = self._count[title] + 1
        name = title if number == 1 else f"{title}@{number}"
        call = self._calls.get(name)
        self._quiet += 1
        try:
            with self._draws.around(call) if call and call.is_random else nullcontext():
                result = run()
        finally:
            self._quiet -= 1
        if (
            title in self._units
            or title not in self._glue
            or any(isinstance(leaf, Tensor) for leaf in flatten(result)[0])
        ):
            self._count[title] = number
        return result


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Of the CPU and of the current GPU; others stay out of it."""
    has_gpu = torch.cuda.is_available()
    before = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if has_gpu else None
    torch.default_generator.manual_seed(seed)
    if has_gpu:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
