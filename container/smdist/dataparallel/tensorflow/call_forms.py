# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that scripts pass to functions of SMDDP and Horovod.

A script may call allreduce() in two ways, which this module tells apart:

SMDDP      allreduce(tensor, param_index, num_params, compression, op)
Horovod    allreduce(tensor, average=None, name=None, op=, prescale_factor=, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, Final, TypeVar, cast

from sagemaker_dist.errors import OptionError, closest, require
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp, as_op

F = TypeVar("F", bound=Callable[..., Any])

# SMDDP's positional arguments after param_index and num_params
_LAST: Final = ("compression", "op")
_TWO = (
    "SMDDP's call is allreduce(tensor, param_index, num_params), Horovod's is"
    " allreduce(tensor, average)"
)
_NAME_IT = "Pass the arguments by name: param_index= and num_params=, or op="


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Factors that multiply the inputs and the results of an all-reduce.

    Attributes:
        before: Factor of the inputs.
        after: Factor of the results.
    """

    before: float = 1.0
    after: float = 1.0


def resolve(positional: tuple[Any, ...], named: dict[str, Any]) -> ReduceOp:
    """Return the reduce operation that a call of allreduce() requests.

    Args:
        positional: The positional arguments after the tensor.
        named: average, op, param_index and num_params, by name; None for one not passed.

    Raises:
        OptionError: The call mixes SMDDP's and Horovod's arguments, could be either, or has a
            value out of range.
    """
    average, index, count = _placed(positional, named)
    smddp = index is not None or count is not None
    require(
        not (smddp and average is not None),
        what="allreduce() received both average and param_index or num_params",
        why=_TWO,
        hint=_NAME_IT,
        about="average",
        kind="conflict",
    )
    if smddp:
        _check_parameter(index, count)
    return _op(average, named["op"])


def name_last_arguments(
    positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move SMDDP's arguments compression and op of allreduce() from `positional` to `named`.

    SMDDP's call is allreduce(tensor, param_index, num_params, compression, op). Return the new
    (positional, named).

    Args:
        positional: The positional arguments after the tensor.
        named: average, compression, op, param_index and num_params, by name.

    Raises:
        OptionError: An argument is passed twice.
    """
    last = dict(zip(_LAST, positional[2:], strict=False))
    for name, value in last.items():
        require(
            named[name] in (None, Compression.none),
            what=f"allreduce() received {name} twice, by position as {value!r} and by name",
            why=_TWO,
            hint=f"Pass {name} only by name",
            about=name,
            kind="conflict",
        )
    return positional[:2] + positional[2 + len(_LAST) :], named | last


def check_devices(**devices: Any) -> None:
    """Raise an error for a device argument of Horovod, such as device_dense, that is not empty.

    Raises:
        OptionError: A device is given; tensors are always reduced on their own device.
    """
    for name, device in devices.items():
        require(
            not device,
            what=f"{name} is {device!r}",
            why="a tensor is always reduced on its own device",
            hint=f"Leave {name} out",
            about=name,
        )


def refuse_unknown(
    called: str, given: Iterable[str], valid: Collection[str], others: Collection[str] = ()
) -> None:
    """Raise an error for an unknown argument name, with the closest valid name as a hint.

    Args:
        called: Name of the function or class in the error.
        given: Argument names of the call.
        valid: Names that are accepted.
        others: Names that are accepted, too, but not listed in the error.

    Raises:
        OptionError: A name of `given` is neither in `valid` nor in `others`.
    """
    for name in given:
        if name in valid or name in others:
            continue
        near = closest(name, [*valid, *others])
        hint = near if near.endswith("?") else closest(name, valid)
        raise OptionError(
            f"{called}() received the argument {name!r}",
            "it has no such argument",
            hint,
            about=name,
            kind="unknown",
        )


def names_of_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the function's arguments that a call may pass by name, in order."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    every = signature(function).parameters.values()
    return [each.name for each in every if each.kind in kinds and each.name != "self"]


def suggest_argument_names(init: F) -> F:
    """Decorate __init__ of a class so that an unknown argument raises OptionError.

    The error has the most similar argument name as a hint.
    """
    valid = names_of_arguments(init)

    @wraps(init)
    def checked(self: Any, *positional: Any, **named: Any) -> None:
        refuse_unknown(init.__qualname__.partition(".")[0], named, valid)
        init(self, *positional, **named)

    return cast(F, checked)


def _placed(positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any, Any]:
    average, index, count = named["average"], named["param_index"], named["num_params"]
    if not positional:
        return average, index, count
    first_is_flag = positional[0] is None or isinstance(positional[0], bool)
    if len(positional) == 1 and first_is_flag and average is None:
        return positional[0], index, count
    if len(positional) == 2 and not first_is_flag and index is None and count is None:
        return average, *positional
    if len(positional) == 1 and not first_is_flag and index is None and count is not None:
        return average, positional[0], count
    raise OptionError(
        f"the call allreduce(tensor, {_as_text(positional)}) is ambiguous",
        _TWO,
        _NAME_IT,
        about="param_index",
        kind="ambiguous",
    )


def _as_text(positional: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, positional))


def _check_parameter(index: Any, count: Any) -> None:
    is_pair = _is_number(index) and _is_number(count) and 0 <= index < count
    require(
        is_pair,
        what=f"param_index is {index!r} and num_params is {count!r}",
        why="both are needed, and tensors are numbered from 0 to num_params - 1",
        hint="Pass param_index=0, num_params=1 for a single tensor",
        about="param_index",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _op(average: Any, op: Any) -> ReduceOp:
    require(
        average is None or op is None,
        what=f"allreduce() received both average={average!r} and op={op!r}",
        why="both choose the reduce operation",
        hint="Pass only op",
        about="average",
        kind="conflict",
    )
    if average is None:
        return as_op(op)
    return ReduceOp.AVERAGE if average else ReduceOp.SUM
