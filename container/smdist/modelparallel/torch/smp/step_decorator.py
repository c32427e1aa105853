# SPDX-License-Identifier: Apache-2.0
"""Decorator `@smp.step`: it runs a user's function once per microbatch, on all ranks.

`Slicing` splits the function's arguments into microbatches as SMP v1 does:

* Tensors are split along dimension 0, or along the axis that `input_split_axes` has for the
  argument. This includes tensors in lists, tuples, dicts, sets and dataclasses.
* Objects with a method `smp_slice(num_mb, mb, axis)` return their own parts.
* Arguments in `non_split_inputs` are passed whole, and so are all other objects.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, overload

from torch import Tensor

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import run_step
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.step_function import StepFunction, gathered
from smdist.modelparallel.torch.session.current_model import require_model

Leaf = tuple[str, Any, int]  # path, leaf, axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """Rules by which the arguments of a step function are split into microbatches.

    Attributes:
        whole: Names of arguments that are not split.
        axes: Dimension along which an argument is split, by its name; 0 for arguments not listed.
    """

    whole: frozenset[str] = frozenset()
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def check(self, function: Callable[..., Any]) -> None:
        """Check that a function has every argument that the rules of splitting name.

        Raises:
            OptionError: The function lacks an argument; the error lists all missing arguments.
        """
        parameters = inspect.signature(function).parameters.values()
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            return
        known = [each.name for each in parameters]
        raise_all(
            OptionError(
                f"smp.step lists the input {name!r}",
                f"{function.__qualname__} has no argument of this name",
                f"Use one of {', '.join(known)}",
                about=name,
                kind="unknown",
            )
            for name in [*sorted(self.whole), *self.axes]
            if name not in known
        )

    def cut(self, function: Callable[..., Any], arguments: Arguments, number: int) -> list[Any]:
        """Split the arguments of a step function into microbatches.

        Args:
            function: The step function.
            arguments: Positional and keyword arguments of the step function for the whole batch.
            number: Number of microbatches.

        Returns:
            Positional and keyword arguments for each microbatch.

        Raises:
            OptionError: Arguments cannot be split into equal parts; the error lists all of them.
        """
        found = named(function, arguments)
        raise_all(self._faults(found, number))
        return [self._piece(found, arguments, (number, at)) for at in range(number)]

    def size(self, function: Callable[..., Any], arguments: Arguments) -> int:
        """Return the number of samples in a batch: the length of the first tensor that is split.

        The result is 0 if only objects with `smp_slice` are split, since their length is not known.

        Args:
            function: The step function.
            arguments: Positional and keyword arguments of the step function for the whole batch.

        Raises:
            OptionError: No argument can be split.
        """
        leaves = list(self._leaves(named(function, arguments)))
        for _, leaf, axis in leaves:
            if isinstance(leaf, Tensor):
                return leaf.shape[axis]
        if leaves:
            return 0  # the model's arguments show the size
        raise OptionError(
            f"{function.__qualname__} got no tensor to split into microbatches",
            "a step runs the microbatches of the batch in its arguments",
            "Pass the batch itself to the function, not a DataLoader",
            kind="no_tensor",
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
                why = f"the tensor has {leaf.dim()} dimensions"
                hint = "Set another axis in input_split_axes"
                what = f"{path!r} cannot be split along axis {axis}"
                yield OptionError(what, why, hint, about=path)
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
    usable = ", ".join(map(str, divisors(length))) if length else "none"
    return OptionError(
        f"{path!r} has {length} samples",
        f"they cannot be split into {number} equal microbatches",
        "Drop the last batch (drop_last=True) or pad it. Numbers of microbatches that fit:"
        f" {usable}",
        about=path,
    )


def named(function: Callable[..., Any], arguments: Arguments) -> list[tuple[str, Any]]:
    """Return the name and value of each argument of a call, positional arguments first.

    Args:
        function: Function to call, which gives the names.
        arguments: Positional and keyword arguments.

    Raises:
        TypeError: The arguments do not fit the function; raised by Python.
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
    """Return a copy of a container with new elements.

    If no element has changed, the container itself is returned.

    Args:
        value: Container to copy: dict, list, tuple, set or dataclass.
        parts: All elements of the result, as pairs of key and element. The key is a key of the
            dict, a position in the list, or the name of a field.
    """
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
    """Return a dict with the items `parts`, made by the class of `value`, such as OrderedDict.

    The result is a plain dict if the class cannot be called with a dict.
    """
    try:
        return type(value)(parts)
    except Exception:
        return parts


Function = Callable[..., Any]


@overload
def step(function: Function) -> Function: ...
@overload
def step(
    *, non_split_inputs: Sequence[str] = (), input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Callable[[Function], Function]: ...  # fmt: skip


def step(
    function: Function | None = None, *, non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None, detach_outputs: bool = True,
) -> Any:  # fmt: skip
    """Decorate a function, so that each call of the function runs the pipeline over a whole batch.

        loss = train_step(model, x, y).reduce_mean()

    As in SMP v1, all ranks of a pipeline call the decorated function with the same batch. The batch
    is split along dimension 0, and the user's function runs once per microbatch. The function has
    to call the model once, and then `model.backward(loss)`; without `model.backward` there is only
    a forward pass. The optimizer, gradient clipping and the GradScaler must be called after the
    step, not in the function. BatchNorm and `len(x)` see one microbatch. The first call plans and
    splits the model. Gradients are complete when a call returns.

    Unlike in SMP, only the rank of the last stage runs the user's function to its end, and the
    results are copied to all ranks. On other ranks the function stops where it calls the model. For
    the first microbatch, the code before the model's call runs twice. Random numbers do not depend
    on how the model is split. Under torch.no_grad() a single replica may run the step.

    Args:
        function: Function of the user; None if the decorator has options, `@smp.step(...)`.
        non_split_inputs: Names of arguments that are passed whole to every microbatch.
        input_split_axes: Dimension along which an argument is split, by the argument's name; 0 for
            arguments not listed.
        detach_outputs: True detaches results from the autograd graph. With False, results on the
            last stage's rank are part of the graph; on other ranks they are not.

    Returns:
        The decorated function. Its result has the form of `function`'s result: a tensor becomes a
        `StepOutput` of all microbatches, and any other value except None becomes a list with one
        element per microbatch.

    Raises:
        OptionError: The function lacks an argument named in `non_split_inputs` or
            `input_split_axes`. Or, in a call, the batch cannot be split into equal microbatches;
            then every rank raises the error before any microbatch runs.
        StepError: In a call, a rank failed.
    """
    if function is None:
        return lambda found: step_of(
            found, _slicing(non_split_inputs, input_split_axes), detach_outputs
        )
    return step_of(function, _slicing(non_split_inputs, input_split_axes), detach_outputs)


def step_of(function: Function, slicing: Slicing, detaches: bool) -> Function:
    """Return the decorated form of a user's function.

    A call of the result splits the batch into microbatches and runs the pipeline over them.

    Args:
        function: Function of the user.
        slicing: Rules by which the function's arguments are split.
        detaches: True detaches results from the autograd graph.
    """
    slicing.check(function)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        model = _model_in((args, kwargs))
        if model._state.microbatch_call is not None:
            raise OptionError(
                f"{function.__qualname__} is called inside another step",
                "a step is a whole run of the pipeline, so steps cannot be nested",
                "Remove @smp.step from the inner function",
                kind="inside_step",
            )
        step_function = StepFunction(
            name=function.__qualname__,
            function=function,
            cut=lambda number: slicing.cut(function, (args, kwargs), number),
            inputs=_data(function, (args, kwargs)),
            size=lambda: slicing.size(function, (args, kwargs)),
            detaches=detaches,
        )
        return gathered(run_step.run(model._state, step_function))

    return run


def _slicing(whole: Sequence[str], axes: Mapping[str, int] | None) -> Slicing:
    names = [whole] if isinstance(whole, str) else list(whole)
    bad = [name for name, axis in (axes or {}).items() if type(axis) is not int]
    if bad:
        raise OptionError(
            f"input_split_axes is {axes!r}",
            f"the axis of {bad[0]!r} is no integer",
            "Pass a dict from names of arguments to integers",
            about="input_split_axes",
        )
    return Slicing(whole=frozenset(names), axes=dict(axes or {}))


def _model_in(arguments: Arguments) -> Parallel:
    """Return the model among the arguments of a step.

    If the arguments contain no model, return the model that the script created last.

    Raises:
        OptionError: The arguments contain several models, or the script has created no model.
    """
    found = {id(each): each for each in _models(arguments)}
    require(
        len(found) <= 1,
        what=f"the arguments of the step contain {len(found)} models",
        why="a step runs one model",
        hint="Put the models into one module, or use a step for each",
    )
    if found:
        return next(iter(found.values()))
    model = require_model()
    assert isinstance(model, Parallel)
    return model


def _models(value: Any) -> Iterator[Parallel]:
    if isinstance(value, Parallel):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _models(each)
    elif isinstance(value, dict):
        yield from _models(list(value.values()))


def _data(function: Function, arguments: Arguments) -> dict[str, Any]:
    """Return the arguments of a step by name, except models.

    The result is used to check that all ranks of a pipeline got the same batch.

    Args:
        function: The step function.
        arguments: Positional and keyword arguments of the step function for the whole batch.
    """
    found: dict[str, Any] = {}
    for name, value in named(function, arguments):
        if not isinstance(value, Parallel):
            found[f"{name} {len(found)}" if name in found else name] = value
    return found
