# SPDX-License-Identifier: Apache-2.0
"""allreduce() as SMDDP's scripts call it and as Horovod's do, told apart before anything is sent.

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

_LAST: Final = ("compression", "op")  # of SMDDP's arguments, behind index and number
_TWO = "SMDDP writes allreduce(tensor, param_index, num_params), Horovod allreduce(tensor, average)"
_NAME_IT = "Name the arguments: param_index= and num_params=, or op="


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What the values are multiplied by, before and after the all-reduce."""

    before: float = 1.0
    after: float = 1.0


def resolve(positional: tuple[Any, ...], named: dict[str, Any]) -> ReduceOp:
    """The operation that a call of allreduce() asks for.

    Args:
        positional: What stood behind the tensor.
        named: average, op, param_index and num_params, None where they were not given.

    Raises:
        OptionError: The call mixes both forms, or could be either, or is out of range.
    """
    average, index, count = _placed(positional, named)
    smddp = index is not None or count is not None
    require(
        not (smddp and average is not None),
        what="allreduce() got average beside param_index or num_params",
        why=_TWO,
        mend=_NAME_IT,
    )
    if smddp:
        _check_parameter(index, count)
    return _op(average, named["op"])


def with_last_named(
    positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Both, with SMDDP's last positional arguments, compression and op, among the named.

    Args:
        positional: What stood behind the tensor.
        named: average, compression, op, param_index and num_params.

    Raises:
        OptionError: One is given twice.
    """
    last = dict(zip(_LAST, positional[2:], strict=False))
    for name, value in last.items():
        require(
            named[name] in (None, Compression.none),
            what=f"allreduce() got {name} twice, {value!r} by its place",
            why=_TWO,
            mend=f"Keep {name}=",
        )
    return positional[:2] + positional[2 + len(_LAST) :], named | last


def check_devices(**devices: Any) -> None:
    """Refuse a device: tensors are reduced where they are.

    Raises:
        OptionError: One is given.
    """
    for name, device in devices.items():
        require(
            not device,
            what=f"{name} is {device!r}",
            why="a tensor is reduced where it lies",
            mend=f"Leave {name} out",
        )


def refuse_unknown(
    called: str, given: Iterable[str], valid: Collection[str], others: Collection[str] = ()
) -> None:
    """Refuse names of arguments that `called` has not, and say which is meant.

    Args:
        others: Are taken too, but listed to nobody.

    Raises:
        OptionError: One of `given` is neither `valid` nor among `others`.
    """
    for name in given:
        if name in valid or name in others:
            continue
        near = closest(name, [*valid, *others])
        mend = near if near.endswith("?") else closest(name, valid)
        raise OptionError(f"{called}() got {name!r}", "it has no such argument", mend)


def names_of_arguments(function: Callable[..., Any]) -> list[str]:
    """Those that a call may write, in order."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    every = signature(function).parameters.values()
    return [each.name for each in every if each.kind in kinds and each.name != "self"]


def with_names_checked(init: F) -> F:
    """A class's __init__ that says which argument is meant where none is called so."""
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
    raise OptionError(f"allreduce(tensor, {_spelt(positional)})", _TWO, _NAME_IT)


def _spelt(positional: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, positional))


def _check_parameter(index: Any, count: Any) -> None:
    is_pair = _is_number(index) and _is_number(count) and 0 <= index < count
    require(
        is_pair,
        what=f"param_index is {index!r} of num_params {count!r}",
        why="tensors are numbered from 0, and both are needed",
        mend="Pass param_index=0, num_params=1 for a single tensor",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _op(average: Any, op: Any) -> ReduceOp:
    require(
        average is None or op is None,
        what=f"allreduce() got average={average!r} and op={op!r}",
        why="both say what is made of the ranks' tensors",
        mend="Keep op",
    )
    if average is None:
        return as_op(op)
    return ReduceOp.AVERAGE if average else ReduceOp.SUM
