# SPDX-License-Identifier: Apache-2.0
"""Limits from SageMaker's service model (boto3's description of its API), and checks of values.

boto3 itself checks only types and minima. Other faults are values above a maximum, values that do
not match a pattern, and values that are not in a list of allowed values. Without these checks, the
service would report such faults only after the code was uploaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from sagemaker_dist.errors import KeyPath, OptionError, closest, subscripted

_ONE_LINE: Final = frozenset({".*", ".+"})
_LINE_BREAKS: Final = frozenset("\n\r\u0085\u2028\u2029")  # "." does not match them in Java
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits of one type ("shape") of SageMaker's service model, such as "TagKey".

    Attributes:
        least: Minimum of a number, minimum length of a text, or minimum number of entries of a
            list; None for no limit.
        most: Maximum of a number, maximum length of a text, or maximum number of entries of a
            list; None for no limit.
        pattern: Regular expression that the whole text must match, or None.
        values: Allowed texts; () if any text is allowed.
    """

    least: int | None = None
    most: int | None = None
    pattern: str | None = None
    values: tuple[str, ...] = ()


Limits = Mapping[str, Limit]  # by the name of the shape
FREE: Final = Limit()


def short_repr(value: object) -> str:
    """Return the repr of a value for messages, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def text_faults(
    key: str | KeyPath, value: Any, limit: Limit, *, hint: str, label: str = ""
) -> Iterator[OptionError]:
    """Yield a fault if a text violates its limit of length, its pattern or its allowed values.

    Args:
        key: Path of the option, which becomes the attribute `about` of the error.
        value: Value of the option; None (left out, or a pipeline variable) is not checked.
        limit: Limit of the text.
        hint: Hint for a text that is too short or does not match the pattern.
        label: Name of the option in messages. Default: its path, such as `tags[0]['Key']`.
    """
    if value is None:
        return
    about = (key,) if isinstance(key, str) else key
    name = label or subscripted(about)
    what = f"{name} is {short_repr(value)}"
    if not isinstance(value, str):
        yield OptionError(what, "it is not a str", "Pass a str", about=about, kind="type")
    elif limit.values:
        if value not in limit.values:
            why, valid = "SageMaker has no such value", closest(value, limit.values)
            yield OptionError(what, why, valid, about, "unknown")
    elif limit.most is not None and len(value) > limit.most:
        what, why = f"{name} has {len(value)} characters", f"SageMaker allows at most {limit.most}"
        yield OptionError(what, why, "Shorten it", about, "too_long")
    elif limit.least is not None and len(value) < limit.least:
        why = f"SageMaker needs at least {_characters(limit.least)}"
        yield OptionError(what, why, hint, about, "too_short")
    elif limit.pattern in _ONE_LINE:
        if not _LINE_BREAKS.isdisjoint(value):
            why = "SageMaker allows no line break in it"
            yield OptionError(what, why, "Remove the line break", about, "line_break")
    elif limit.pattern is not None and not re.fullmatch(limit.pattern, value):
        yield OptionError(
            what, f"SageMaker requires that it matches {limit.pattern}", hint, about=about
        )


def number_faults(
    key: str | KeyPath, value: Any, limit: Limit, *, label: str = ""
) -> Iterator[OptionError]:
    """Yield a fault if a number is not an integer, or is outside its limit.

    Args:
        key: Path of the option, which becomes the attribute `about` of the error.
        value: Value of the option; None (left out, or a pipeline variable) is not checked.
        limit: Limit of the number.
        label: Name of the option in messages. Default: its path, such as `tags[0]['Key']`.
    """
    if value is None:
        return
    about = (key,) if isinstance(key, str) else key
    name = label or subscripted(about)
    what, number = f"{name} is {short_repr(value)}", integer(value)
    if number is None:
        yield OptionError(what, "it is not an integer", "Pass an integer", about=about, kind="type")
    elif limit.least is not None and number < limit.least:
        yield OptionError(
            what,
            f"the minimum is {limit.least}",
            f"Pass at least {limit.least}",
            about=about,
            kind="too_small",
        )
    elif limit.most is not None and number > limit.most:
        yield OptionError(
            what,
            f"the maximum is {limit.most}",
            f"Pass at most {limit.most}",
            about=about,
            kind="too_large",
        )


def entry_count_faults(name: str, amount: int, limit: Limit) -> Iterator[OptionError]:
    """Yield a fault if a list or dict has too many or too few entries for SageMaker.

    Args:
        name: Name of the option whose value is a list or dict.
        amount: Number of entries of this list or dict.
        limit: Smallest and largest number of entries.
    """
    what = f"{name} has {amount} {'entry' if amount == 1 else 'entries'}"
    if limit.most is not None and amount > limit.most:
        yield OptionError(
            what,
            f"SageMaker allows at most {limit.most}",
            "Leave some of them out",
            about=name,
            kind="too_many",
        )
    elif limit.least is not None and amount < limit.least:
        yield OptionError(
            what,
            f"SageMaker needs at least {limit.least}",
            f"Add an entry, or leave {name} out",
            about=name,
            kind="too_few",
        )


def integer(value: Any) -> int | None:
    """Return an integer of any type, such as numpy's, as an int; None for all other values."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _characters(number: int) -> str:
    return "one character" if number == 1 else f"{number} characters"
