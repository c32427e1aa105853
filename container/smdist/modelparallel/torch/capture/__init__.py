# SPDX-License-Identifier: Apache-2.0
"""Capture of a model: its forward pass is recorded as a program that can be split into stages.

`capture(model, example)` runs the model's forward function on fake tensors, which have shapes and
no values. Some modules are units: a unit is never split between stages, so it is recorded as one
call. Operations outside units (glue) are recorded one by one.

If the operations inside a module cannot be recorded, the module becomes a unit, and the model runs
again. A unit stays a unit, so the number of runs is limited.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import nn

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.note import UNCUT_MODULE, Note
from smdist.modelparallel.torch.capture.build_graph import build_graph, crowded
from smdist.modelparallel.torch.capture.capture_errors import CaptureError, Escalation
from smdist.modelparallel.torch.capture.capture_run import run_once
from smdist.modelparallel.torch.capture.diagnosis import failure_of
from smdist.modelparallel.torch.capture.signature import has_hooks, signature
from smdist.modelparallel.torch.capture.units import composite_elements, default_units
from smdist.modelparallel.torch.capture.unsupported_models import refuse
from smdist.modelparallel.torch.program.program import Program

__all__ = ["CaptureError", "Captured", "arguments_of", "capture", "signature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Recording of a model's forward pass; the model itself is unchanged.

    Attributes:
        graph: Graph of the recorded calls, for the planner.
        program: Recorded calls, for the stages.
        model: The user's model.
        example: Batch on which the forward pass was recorded.
        key: Shapes, types and settings that the program depends on; see `signature`. A batch with
            another key needs another recording.
        notes: Modules that cannot be split because their operations cannot be recorded, with the
            reasons.
    """

    graph: Graph = field(repr=False)
    program: Program = field(repr=False)
    model: nn.Module = field(repr=False)
    example: Any = field(repr=False)
    key: Hashable = field(repr=False)
    notes: tuple[Note, ...] = ()

    def serves(self, example: Any) -> bool:
        """Return True if the recorded calls can also run on the batch `example`.

        The shapes and types of the batch, and the modes, attributes and hooks of the model must be
        the same as when the calls were recorded.
        """
        return self.key == signature(self.model, arguments_of(example))


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example as the positional and keyword arguments of a model's call.

    A dict contains the keyword arguments, and a tuple the positional ones. Any other object is the
    only positional argument.
    """
    if isinstance(example, dict):
        return (), dict(example)
    return (example, {}) if isinstance(example, tuple) else ((example,), {})


def capture(
    model: nn.Module,
    example: Any,
    *,
    opened: Collection[str] = frozenset(),
    closed: Collection[str] = frozenset(),
) -> Captured:
    """Record the forward pass of a model as a program that can be split into stages.

    Args:
        model: Any module, also one on the meta device.
        example: A tensor, a tuple of positional arguments or a dict of keyword arguments: the
            batch of one replica, or another batch of the same shapes.
        opened: Names of modules that may be split between stages, although the default is not to
            split them. All modules around them may then be split, too.
        closed: Names of modules that must not be split, also inside an opened module.

    Raises:
        CaptureError: The forward function of the model itself cannot be recorded (the error shows
            the line), or a name is not the name of a module.
    """
    _check_names(model, opened, closed)
    refuse(model)
    arguments = arguments_of(example)
    search = _Search(model, arguments, frozenset(opened), frozenset(closed))
    program = search.run()
    return Captured(
        graph=build_graph(model, program),
        program=program,
        model=model,
        example=example,
        key=signature(model, arguments),
        notes=tuple(search.notes),
    )


class _Search:
    """Search for a model's units: modules that are recorded as one call and never split.

    The model runs on fake tensors until everything outside the units can be recorded.
    """

    def __init__(
        self, model: nn.Module, arguments: Any, opened: frozenset[str], closed: frozenset[str]
    ) -> None:
        self._model, self._arguments = model, arguments
        self._asked = opened | _parents(opened)
        self._guessed = composite_elements(model) - self._asked - closed
        self._closed = set(closed) | self._whole_modules()
        self.notes: list[Note] = []

    def run(self) -> Program:
        while True:
            try:
                program = self._attempt()
            except Escalation as found:
                self._close(found)
                continue
            tight = crowded(program, self._guessed - self._closed)
            if not tight:
                return program
            self._closed |= _innermost(tight)

    def _attempt(self) -> Program:
        opened = self._asked | (self._guessed - self._closed)
        units = default_units(self._model, opened=opened, closed=frozenset(self._closed))
        return run_once(self._model, self._arguments, units)

    def _close(self, found: Escalation) -> None:
        if found.module == "" or found.module in self._closed:
            failure = failure_of(self._model, self._arguments) if found.is_error else None
            if failure is not None:
                raise failure from found.__cause__
            raise CaptureError(
                f"the forward function of {type(self._model).__name__} cannot be recorded"
                + (f" at {found.line}" if found.line else ""),
                found.reason,
                found.hint,
                about=found.about,
                kind=found.kind,
                line=found.line,
            ) from found.__cause__
        twins = self._twins(found.module)
        self._closed |= twins
        more = f" and so are {len(twins) - 1} more of its class" if len(twins) > 1 else ""
        text = f"{found.module!r} is one unit{more}: {found.reason} ({found.line})"
        self.notes.append(Note(UNCUT_MODULE, text, found.module))

    def _twins(self, name: str) -> set[str]:
        """Return the names of all modules of the same class as the module `name`.

        For a class of PyTorch, only `name` is returned.
        """
        cls = type(self._model.get_submodule(name))
        if cls.__module__.startswith("torch."):
            return {name}
        modules = self._model.named_modules()
        return {twin for twin, module in modules if twin and type(module) is cls} | {name}

    def _whole_modules(self) -> set[str]:
        """Return the names of modules that have hooks and submodules, or are marked as units.

        These modules are not split between stages, because stages run hooks of whole modules only.
        The mark has split modules that replace their arguments.
        """
        return {
            name
            for name, module in self._model.named_modules()
            if name
            and (has_hooks(module) or getattr(module, "_smp_is_unit", False))
            and any(module.children())
        }


def _parents(names: Collection[str]) -> frozenset[str]:
    parts = [name.split(".") for name in names]
    return frozenset(".".join(p[:end]) for p in parts for end in range(1, len(p)))


def _innermost(names: set[str]) -> set[str]:
    return {n for n in names if not any(other.startswith(f"{n}.") for other in names)}


def _check_names(model: nn.Module, *groups: Collection[str]) -> None:
    known = [name for name, _ in model.named_modules()]
    raise_all(
        CaptureError(
            f"there is no module {name!r}",
            "opened and closed have to contain names of modules of the model",
            _name_hint(name, known),
            about=name,
            kind="unknown_module",
        )
        for group in groups
        for name in group
        if name not in known
    )


def _name_hint(name: str, known: list[str]) -> str:
    """Return a hint for an unknown module name: the most similar one of the `known` names."""
    match = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"Did you mean {match[0]!r}?" if match else "Take one of model.named_modules()"
