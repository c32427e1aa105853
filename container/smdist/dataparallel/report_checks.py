# SPDX-License-Identifier: Apache-2.0
"""Checks of the names and values that a script passes to report() for the progress line."""

from __future__ import annotations

from contextlib import suppress
from numbers import Integral, Real
from typing import Final

from sagemaker_dist.contract.metrics import STEP, check_field
from sagemaker_dist.errors import OptionError

_STEPS: Final = range(-(2**63), 2**63)


def check_name(name: str, value: object) -> bool:
    """Check the name of a reported value, and the value if the name is "step".

    Returns:
        True if the name is "step", so that the value needs no further check.

    Raises:
        OptionError: The name is not allowed, or the step is not a 64-bit integer.
    """
    check_field(name)
    if name == STEP and (not isinstance(value, Integral) or int(value) not in _STEPS):
        why = "a step must be an integer of at most 64 bits"
        hint = "Pass step as an integer, or leave it out"
        raise refusal(name, _shown(value), why, hint, "not_integer")
    return name == STEP


def check_number(name: str, value: object) -> None:
    """Check that a reported value is a number that fits into a float.

    Raises:
        OptionError: The value is not a real number, or float() overflows.
    """
    if not isinstance(value, Real):
        hint = "Pass a number or a tensor with one element"
        why = "it is neither a number nor a tensor"
        raise refusal(name, _shown(value), why, hint, "not_number")
    try:
        float(value)
    except OverflowError as error:
        why = "it is too large for a floating-point number"
        hint = "Pass its logarithm, or leave it out"
        raise refusal(name, _shown(value), why, hint, "too_large") from error


def refusal(name: str, shown: str, why: str, hint: str, kind: str) -> OptionError:
    """Return the error for a value that report() refuses.

    Args:
        name: Name of the value.
        shown: The value as text.
        why: Reason of the refusal.
        hint: Advice for the user.
        kind: Kind of the error.
    """
    return OptionError(f"report() received {name}={shown[:200]}", why, hint, name, kind)


def _shown(value: object) -> str:
    with suppress(ValueError):  # Python refuses to print an integer of thousands of digits
        return repr(value)
    return f"an {type(value).__name__} too long to print"
