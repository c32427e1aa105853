# SPDX-License-Identifier: Apache-2.0
"""Limits of SageMaker's service model, and faults of values that exceed them.

boto3 itself checks only types and minima: the service finds violations of a maximum, a pattern or
an enumeration, after the code was uploaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from sagemaker_dist.errors import KeyPath, OptionError, closest, subscripted

_ONE_LINE: Final = frozenset({".*", ".+"})
_LINE_BREAKS: Final = frozenset(
    "\n\r\u0085\u2028\u2029"
)  # characters that "." does not match in Java
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits of one shape of the service model.

    Attributes:
        least: Least number, characters of a text, or entries of a list; None for no limit.
        most: Most of the same; None for no limit.
        pattern: Expression that the whole text must match, or None.
        values: Allowed texts, or () for any.
    """

    least: int | None = None
    most: int | None = None
    pattern: str | None = None
    values: tuple[str, ...] = ()


Limits = Mapping[str, Limit]  # by the name of the shape
FREE: Final = Limit()


def shown(value: object) -> str:
    """Return the value's repr, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def text_faults(
    key: str | KeyPath, value: Any, limit: Limit, *, hint: str, label: str = ""
) -> Iterator[OptionError]:
    """Yield the fault of a text; None is a pipeline variable.

    Args:
        label: Name of the key in messages. Default: its path, as Python spells it.
    """
    if value is None:
        return
    about = (key,) if isinstance(key, str) else key
    name = label or subscripted(about)
    what = f"{name} is {shown(value)}"
    if not isinstance(value, str):
        yield OptionError(what, "it is not a str", "Pass a str", about=about)
    elif limit.values:
        if value not in limit.values:
            yield OptionError(
                what, "SageMaker has no such value", closest(value, limit.values), about=about
            )
    elif limit.most is not None and len(value) > limit.most:
        yield OptionError(
            f"{name} has {len(value)} characters",
            f"SageMaker takes at most {limit.most}",
            "Shorten it",
            about=about,
        )
    elif limit.least is not None and len(value) < limit.least:
        yield OptionError(
            what, f"SageMaker needs at least {_characters(limit.least)}", hint, about=about
        )
    elif limit.pattern in _ONE_LINE:
        if not _LINE_BREAKS.isdisjoint(value):
            yield OptionError(
                what, "SageMaker allows one line", "Remove the line break", about=about
            )
    elif limit.pattern is not None and not re.fullmatch(limit.pattern, value):
        yield OptionError(what, f"SageMaker needs a match of {limit.pattern}", hint, about=about)


def number_faults(
    key: str | KeyPath, value: Any, limit: Limit, *, label: str = ""
) -> Iterator[OptionError]:
    """Yield the fault of an integer; None is a pipeline variable."""
    if value is None:
        return
    about = (key,) if isinstance(key, str) else key
    name = label or subscripted(about)
    what, number = f"{name} is {shown(value)}", integer(value)
    if number is None:
        yield OptionError(what, "it is not an integer", "Pass an int", about=about)
    elif limit.least is not None and number < limit.least:
        yield OptionError(
            what, f"the minimum is {limit.least}", f"Pass at least {limit.least}", about=about
        )
    elif limit.most is not None and number > limit.most:
        yield OptionError(
            what, f"the maximum is {limit.most}", f"Pass at most {limit.most}", about=about
        )


def amount_faults(name: str, amount: int, limit: Limit) -> Iterator[OptionError]:
    """Yield a fault if a list or dict has too many or too few entries."""
    what = f"{name} has {amount} {'entry' if amount == 1 else 'entries'}"
    if limit.most is not None and amount > limit.most:
        yield OptionError(
            what, f"SageMaker takes at most {limit.most}", "Leave some out", about=name
        )
    elif limit.least is not None and amount < limit.least:
        yield OptionError(
            what,
            f"SageMaker needs at least {limit.least}",
            f"Add one, or leave {name} out",
            about=name,
        )


def integer(value: Any) -> int | None:
    """Return the value as an int, also from numpy integers, or None."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _characters(number: int) -> str:
    return "one character" if number == 1 else f"{number} characters"
