# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's service model says of a value, and the faults of a value that exceeds it.

boto3 itself looks at types and minima alone: a maximum, a pattern or an
enumeration is found out by the service, after the code was uploaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest

_ONE_LINE: Final = frozenset({".*", ".+"})
_LINE_BREAKS: Final = frozenset("\n\r\u0085\u2028\u2029")  # what "." leaves out, in Java
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One shape of the service model.

    Attributes:
        least: Of a number, of the characters of a text, or of the entries of a list.
        most: The same.
        pattern: What the whole of a text matches.
        values: All that a text may be, or () where it is free.
    """

    least: int | None = None
    most: int | None = None
    pattern: str | None = None
    values: tuple[str, ...] = ()


Limits = Mapping[str, Limit]  # by the name of the shape
FREE: Final = Limit()


def shown(value: object) -> str:
    """The value by its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def text_faults(name: str, value: Any, limit: Limit, *, mend: str) -> Iterator[OptionError]:
    """What is wrong with a text; None is known to a pipeline alone."""
    if value is None:
        return
    what = f"{name} is {shown(value)}"
    if not isinstance(value, str):
        yield OptionError(what, "it is no text", "Pass a str")
    elif limit.values:
        if value not in limit.values:
            yield OptionError(what, "SageMaker knows no such value", closest(value, limit.values))
    elif limit.most is not None and len(value) > limit.most:
        yield OptionError(
            f"{name} has {len(value)} characters",
            f"SageMaker takes at most {limit.most}",
            "Pass a shorter one",
        )
    elif limit.least is not None and len(value) < limit.least:
        yield OptionError(what, f"SageMaker wants at least {_characters(limit.least)}", mend)
    elif limit.pattern in _ONE_LINE:
        if not _LINE_BREAKS.isdisjoint(value):
            yield OptionError(what, "SageMaker takes one line", "Take the line break out")
    elif limit.pattern is not None and not re.fullmatch(limit.pattern, value):
        yield OptionError(what, f"SageMaker takes what matches {limit.pattern}", mend)


def number_faults(name: str, value: Any, limit: Limit) -> Iterator[OptionError]:
    """What is wrong with an integer; None is known to a pipeline alone."""
    if value is None:
        return
    what, number = f"{name} is {shown(value)}", integer(value)
    if number is None:
        yield OptionError(what, "it is no integer", "Pass an int")
    elif limit.least is not None and number < limit.least:
        yield OptionError(what, f"the least is {limit.least}", f"Pass at least {limit.least}")
    elif limit.most is not None and number > limit.most:
        yield OptionError(what, f"the most is {limit.most}", f"Pass at most {limit.most}")


def amount_faults(name: str, amount: int, limit: Limit) -> Iterator[OptionError]:
    """A list or dict that has too many entries or too few."""
    what = f"{name} has {amount} {'entry' if amount == 1 else 'entries'}"
    if limit.most is not None and amount > limit.most:
        yield OptionError(what, f"SageMaker takes at most {limit.most}", "Leave some out")
    elif limit.least is not None and amount < limit.least:
        yield OptionError(
            what, f"SageMaker wants at least {limit.least}", f"Add one, or leave {name} out"
        )


def integer(value: Any) -> int | None:
    """The value as an int, whoever's integer it was, or None."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _characters(number: int) -> str:
    return "one character" if number == 1 else f"{number} characters"
