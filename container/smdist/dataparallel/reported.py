# SPDX-License-Identifier: Apache-2.0
"""What a script may put on the line of progress, checked where it says so."""

from __future__ import annotations

from contextlib import suppress
from numbers import Integral, Real
from typing import Final

from sagemaker_dist.contract.metrics import STEP, check_field
from sagemaker_dist.errors import OptionError

_STEPS: Final = range(-(2**63), 2**63)


def check_name(name: str, value: object) -> bool:
    """Refuse a name that the line cannot have, and a wrong step.

    Returns:
        Whether it was the step: nothing else is to be checked.

    Raises:
        OptionError: It is one of these.
    """
    check_field(name)
    if name == STEP and (not isinstance(value, Integral) or int(value) not in _STEPS):
        why = "a step is an integer of 64 bits"
        raise refusal(name, _shown(value), why, "Pass such a number, or leave it out")
    return name == STEP


def check_number(name: str, value: object) -> None:
    """Refuse what is no number, or too large for one.

    Raises:
        OptionError: It is.
    """
    if not isinstance(value, Real):
        mend = "Pass a number or a tensor with one element"
        raise refusal(name, _shown(value), "it is neither a number nor a tensor", mend)
    try:
        float(value)
    except OverflowError as error:
        why = "it is too large for a floating-point number"
        raise refusal(name, _shown(value), why, "Pass its logarithm, or leave it out") from error


def refusal(name: str, shown: str, why: str, mend: str) -> OptionError:
    """The error for a value that cannot be reported."""
    return OptionError(f"report() was given {name}={shown[:200]}", why, mend)


def _shown(value: object) -> str:
    with suppress(ValueError):  # Python writes out no integer of thousands of digits
        return repr(value)
    return f"an {type(value).__name__} that has no text"
