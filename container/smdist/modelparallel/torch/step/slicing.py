# SPDX-License-Identifier: Apache-2.0
"""The inputs of a step function, cut into microbatches as SMP v1 cuts them.

Tensors are narrowed along dimension 0 or the axis that is named for the argument, wherever they
are in lists, tuples, dicts, sets and dataclasses. Objects with `smp_slice(num_mb, mb, axis)` cut
themselves. What is named in `non_split_inputs` is passed whole, and so is anything else.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.plan.check import divisors
from smdist.modelparallel.torch.executor import Arguments

Leaf = tuple[str, Any, int]  # where it is, itself, along which axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """How the arguments of a step function are cut.

    Attributes:
        whole: Names of arguments that are not.
        axes: Along which axis, by argument; 0 for all others.
    """

    whole: frozenset[str] = frozenset()
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def check(self, function: Callable[..., Any]) -> None:
        """Raise unless the function has all arguments that are named.

        Raises:
            OptionError: It has not; all of them.
        """
        parameters = inspect.signature(function).parameters.values()
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return
        known = [each.name for each in parameters]
        raise_all(
            OptionError(
                f"smp.step names the input {name!r}",
                f"{function.__qualname__} has no such argument",
                f"Name one of {', '.join(known)}",
            )
            for name in [*sorted(self.whole), *self.axes]
            if name not in known
        )

    def cut(self, function: Callable[..., Any], arguments: Arguments, number: int) -> list[Any]:
        """The arguments for each of so many microbatches.

        Raises:
            OptionError: Something cannot be cut so; all of it, by argument.
        """
        found = named(function, arguments)
        raise_all(self._faults(found, number))
        return [self._piece(found, arguments, (number, at)) for at in range(number)]

    def size(self, function: Callable[..., Any], arguments: Arguments) -> int:
        """Samples in a batch: of the first tensor that is cut; 0 where objects cut themselves.

        Raises:
            OptionError: Nothing is.
        """
        leaves = list(self._leaves(named(function, arguments)))
        for _, leaf, axis in leaves:
            if isinstance(leaf, Tensor):
                return leaf.shape[axis]
        if leaves:
            return 0  # what they give the model tells
        raise OptionError(
            f"{function.__qualname__} got no tensor to cut into microbatches",
            "a step works on one batch, in parts",
            "Pass the batch to it, and not a DataLoader or the name of one",
        )

    def _leaves(self, found: list[tuple[str, Any]]) -> Iterator[Leaf]:
        for name, value in found:
            if name not in self.whole:
                yield from _walk(name, value, self.axes.get(name, 0))

    def _faults(self, found: list[tuple[str, Any]], number: int) -> Iterator[OptionError]:
        for path, leaf, axis in self._leaves(found):
            if not isinstance(leaf, Tensor):
                continue
            if not -leaf.dim() <= axis < leaf.dim():
                why = f"it has {leaf.dim()} dimensions"
                mend = "Name another axis in input_split_axes"
                yield OptionError(f"{path!r} is to be cut along axis {axis}", why, mend)
            elif leaf.shape[axis] % number or not leaf.shape[axis]:
                yield _uneven(path, leaf.shape[axis], number)

    def _piece(self, found: list[tuple[str, Any]], arguments: Arguments, part: Any) -> Arguments:
        parts = [
            value if name in self.whole else _cut(value, self.axes.get(name, 0), part)
            for name, value in found
        ]
        count = len(arguments[0])
        return tuple(parts[:count]), dict(zip(arguments[1], parts[count:], strict=True))


def _uneven(path: str, length: int, number: int) -> OptionError:
    usable = ", ".join(map(str, divisors(length))) if length else "another batch"
    return OptionError(
        f"{path!r} has {length} samples",
        f"they cannot be cut into {number} equal microbatches",
        f"Drop the last batch (drop_last=True), pad it, or use {usable} microbatches",
    )


def named(function: Callable[..., Any], arguments: Arguments) -> list[tuple[str, Any]]:
    """Positional arguments, then keywords, each with its name.

    Raises:
        TypeError: They do not fit the function: Python's own.
    """
    args, kwargs = arguments
    names: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [each.name] * (len(args) - len(names))
        elif each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            names.append(each.name)
    inspect.signature(function).bind(*args, **kwargs)
    return [*zip(names, args, strict=False), *kwargs.items()]


def _walk(path: str, value: Any, axis: int) -> Iterator[Leaf]:
    if isinstance(value, Tensor):
        if value.dim():
            yield path, value, axis
    elif hasattr(value, "smp_slice"):
        yield path, value, axis
    else:
        for key, part in _parts(value):
            yield from _walk(f"{path}[{key!r}]", part, axis)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    return []


def _cut(value: Any, axis: int, part: tuple[int, int]) -> Any:
    number, at = part
    if isinstance(value, Tensor):
        if not value.dim():
            return value
        length = value.shape[axis] // number
        return value.narrow(axis, at * length, length)
    if hasattr(value, "smp_slice"):
        return value.smp_slice(number, at, axis)
    return _rebuilt(value, [(key, _cut(each, axis, part)) for key, each in _parts(value)])


def _rebuilt(value: Any, parts: list[tuple[Any, Any]]) -> Any:
    """The same container around other parts; one that is as it was stays itself."""
    if all(new is old for (_, new), (_, old) in zip(parts, _parts(value), strict=True)):
        return value
    if isinstance(value, dict):
        return _mapping(value, dict(parts))
    found = [new for _, new in parts]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*found)
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(found)
    made: Any = object.__new__(type(value))
    for name, each in {**vars(value), **dict(parts)}.items():
        object.__setattr__(made, name, each)
    return made


def _mapping(value: dict[Any, Any], parts: dict[Any, Any]) -> Any:
    """Of the same class where that takes items, as transformers' BatchEncoding does not."""
    try:
        return type(value)(parts)
    except Exception:
        return parts
