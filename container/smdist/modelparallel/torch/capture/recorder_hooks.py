# SPDX-License-Identifier: Apache-2.0
"""Patches of PyTorch that pass calls of modules and autograd functions to a recorder.

Patched are:

- `nn.Module.__call__`, and the `__call__` of each class that defines its own.
- `autograd.Function.apply`, so that a function with its own backward pass is recorded as one call.
  The patch is in a base class, so it also affects references to `apply` that user code has stored.
- The internal function with which `torch.utils.checkpoint` begins.

All patches are removed afterwards. Calls of other threads are not passed to the recorder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch.autograd.function as functions
from torch import nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointFunction

_SETTINGS = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
_LOCK = threading.RLock()


class Listener(Protocol):
    """Receiver of the calls that the patches of PyTorch intercept, such as a recorder."""

    @property
    def is_quiet(self) -> bool:
        """True while a unit or a recorded function runs: calls inside it are not recorded."""

    def knows(self, module: nn.Module) -> bool:
        """Return True if a module belongs to the model."""

    def is_passing(self, module: nn.Module, level: type) -> bool:
        """Return True if a subclass's `__call__` has called this `__call__` through `super()`.

        The module's call is then already intercepted, and must not be recorded again.

        Args:
            module: Module that is called.
            level: Class that defines the running `__call__`.
        """

    def module(
        self, run: Callable[..., Any], module: nn.Module, arguments: Any, *, level: type
    ) -> Any:
        """Handle the call of a module of the model, and return its result.

        Args:
            run: The original `__call__`, to be executed by this method.
            module: The module.
            arguments: Positional arguments and keyword arguments.
            level: Class that defines `run`.
        """

    def function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Handle the call of a function, and return the function's result.

        Args:
            function: The original function, to be executed by this method.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """

    def checkpointed(
        self, function: Callable[..., Any], settings: dict[str, Any]
    ) -> Callable[..., Any] | None:
        """Start an activation checkpoint around `function`.

        Args:
            function: The checkpointed function.
            settings: Keyword arguments of `torch.utils.checkpoint`.

        Returns:
            The function to run in the checkpoint; None to run `function` without a checkpoint.
        """

    def leave_checkpoint(self) -> None:
        """Handle the end of the activation checkpoint that `checkpointed` started."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any: ...


@contextmanager
def recording(recorder: Listener, model: nn.Module) -> Iterator[None]:
    """Pass calls of this thread to the recorder within the block.

    Passed are calls of the model's modules, of functions of PyTorch, and of activation checkpoints.

    Args:
        recorder: The recorder, which is active within the block.
        model: Model whose classes are patched if they have a `__call__` of their own.
    """
    own = {cls for module in model.modules() for cls in type(module).__mro__ if _calls(cls)}
    with _LOCK, ExitStack() as stack:
        for cls in own:
            stack.enter_context(_patched_call(cls, recorder))
        stack.enter_context(_patched_apply(recorder))
        stack.enter_context(_patched_checkpoint(recorder))
        stack.enter_context(recorder)
        yield


def _calls(cls: type) -> bool:
    return issubclass(cls, nn.Module) and "__call__" in vars(cls)


@contextmanager
def _patched_call(cls: type, recorder: Listener) -> Iterator[None]:
    original = vars(cls)["__call__"]
    thread = threading.get_ident()

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_ours = threading.get_ident() == thread and not recorder.is_quiet
        if not is_ours or not recorder.knows(module) or recorder.is_passing(module, cls):
            return original(module, *args, **kwargs)
        return recorder.module(original, module, (args, kwargs), level=cls)

    with _replaced(cls, "__call__", call):
        yield


@contextmanager
def _patched_apply(recorder: Listener) -> Iterator[None]:
    between = functions._SingleLevelFunction
    thread = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        run = super(between, cls).apply
        if threading.get_ident() != thread or recorder.is_quiet:
            return run(*args, **kwargs)
        if cls is CheckpointFunction:
            return _reentrant(recorder, run, *args)
        return recorder.function(cls.apply, args, kwargs)

    with _replaced(between, "apply", classmethod(apply)):
        yield


def _reentrant(
    recorder: Listener, run: Callable[..., Any], function: Any, preserve: bool, *args: Any
) -> Any:
    settings = {"use_reentrant": True, "preserve_rng_state": preserve}
    wrapped = recorder.checkpointed(function, settings)
    if wrapped is not None:
        return run(wrapped, preserve, *args)
    result = function(*args)
    recorder.leave_checkpoint()
    return result


@contextmanager
def _patched_checkpoint(recorder: Listener) -> Iterator[None]:
    original = checkpoints._checkpoint_without_reentrant_generator
    thread = threading.get_ident()

    def generator(function: Any, *settings: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or recorder.is_quiet:
            return original(function, *settings, **kwargs)
        named = dict(zip(_SETTINGS, settings, strict=False))
        wrapped = recorder.checkpointed(function, {"use_reentrant": False, **named})
        return _aside(recorder) if wrapped is None else original(wrapped, *settings, **kwargs)

    with _replaced(checkpoints, "_checkpoint_without_reentrant_generator", generator):
        yield


def _aside(recorder: Listener) -> Iterator[None]:
    """Notify the recorder when a checkpointed function has ended; make no checkpoint.

    This generator replaces a generator of PyTorch that makes the activation checkpoint. PyTorch
    resumes it once before and once after the checkpointed function.

    Args:
        recorder: Recorder to notify.
    """
    yield
    recorder.leave_checkpoint()


@contextmanager
def _replaced(owner: Any, name: str, value: Callable[..., Any] | Any) -> Iterator[None]:
    is_own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
