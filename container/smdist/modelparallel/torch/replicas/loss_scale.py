# SPDX-License-Identifier: Apache-2.0
"""Loss scale of float16 training: a factor of the loss, which keeps small gradients above zero.

The smallest float16 number above zero is about 6e-8, so smaller gradients would be lost. The loss
is multiplied by the scale before the backward pass, and gradients are divided by it afterwards. A
scale that is too large makes gradients infinite; such a step is skipped.

A static scale stays as it is. A dynamic scale is lowered after skipped steps, and raised after a
number of steps without infinite gradients. Names and defaults of its options are those of SMP v1:

    init_scale               scale of the first step
    scale_factor             factor by which the scale is raised or lowered
    scale_window             number of clean steps in a row after which the scale is raised
    min_scale                smallest scale
    delayed_shift            number of skipped steps after which the scale is lowered
    consecutive_hysteresis   True: a clean step resets the count of skipped steps; False: only a
                             raise of the scale does
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from sagemaker_dist.errors import OptionError, closest, raise_all

DEFAULTS: Final[Mapping[str, Any]] = {
    "init_scale": 2.0**32,
    "scale_factor": 2.0,
    "scale_window": 1000,
    "min_scale": 1.0,
    "delayed_shift": 1,
    "consecutive_hysteresis": False,
}
_ARGUMENTS: Final = "dynamic_loss_args"
_COUNTS: Final = ("scale_window", "delayed_shift")
_SAVED: Final = ("value", "num_clean", "num_left")


@dataclass(slots=True, kw_only=True)
class LossScale:
    """Loss scale of one optimizer; the same on all ranks, since all ranks skip the same steps.

    Attributes:
        value: Factor of the loss in the next step, above 0.
        rules: Options of a dynamic scale, as in `DEFAULTS`; None for a static scale.
        num_clean: Number of steps without infinite gradients since the scale last changed, or since
            the last skipped step.
        num_left: Number of skipped steps until the scale is lowered, at least 1.
    """

    value: float
    rules: Mapping[str, Any] | None
    num_clean: int = 0
    num_left: int = 1

    @classmethod
    def of(cls, static: object, dynamic: object, arguments: Mapping[str, Any] | None) -> Self:
        """Return a loss scale for the arguments of `smp.DistributedOptimizer`.

        Args:
            static: Argument `static_loss_scale`: a number above 0, or None with a dynamic scale.
            dynamic: Argument `dynamic_loss_scale`: True for a dynamic scale.
            arguments: Argument `dynamic_loss_args`: options of a dynamic scale; None for defaults.

        Raises:
            OptionError: Arguments are wrong; all faults are reported.
        """
        raise_all(_faults(static, dynamic, arguments))
        if not dynamic:
            return cls(value=float(static), rules=None)  # type: ignore[arg-type]
        rules = {**DEFAULTS, **(arguments or {})}
        return cls(value=float(rules["init_scale"]), rules=rules, num_left=rules["delayed_shift"])

    def update(self, overflow: bool) -> None:
        """Set the scale of the next step; a static scale stays as it is.

        Args:
            overflow: True if the step was skipped, because a gradient was infinite or NaN.
        """
        if self.rules is not None:
            (self._after_overflow if overflow else self._after_clean)(self.rules)

    def _after_overflow(self, rules: Mapping[str, Any]) -> None:
        self.num_clean = 0
        if self.num_left > 1:
            self.num_left -= 1
        else:
            self.value = max(self.value / rules["scale_factor"], float(rules["min_scale"]))

    def _after_clean(self, rules: Mapping[str, Any]) -> None:
        self.num_clean += 1
        is_full = self.num_clean == rules["scale_window"]
        if is_full:
            self.num_clean = 0
            self.value *= rules["scale_factor"]
        if is_full or rules["consecutive_hysteresis"]:
            self.num_left = rules["delayed_shift"]

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its counters, to be saved with a checkpoint."""
        return {name: getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        A static scale stays as the script has set it.

        Args:
            state: Result of `state_dict`.
        """
        if self.rules is not None:
            for name in _SAVED:
                setattr(self, name, state[name])


def _faults(
    static: object, dynamic: object, arguments: Mapping[str, Any] | None
) -> Iterator[OptionError]:
    """Yield an error for each wrong argument of `LossScale.of`."""
    if not isinstance(dynamic, bool):
        what, why = f"dynamic_loss_scale is {dynamic!r}", "it has to be a bool"
        yield OptionError(what, why, "Pass True or False", about="dynamic_loss_scale")
        return
    if dynamic and static not in (None, 1.0):
        yield OptionError(
            f"static_loss_scale is {static!r}, and dynamic_loss_scale is True",
            "the loss is multiplied by one of the two scales",
            "Pass static_loss_scale=None, and dynamic_loss_args={'init_scale': ...} for the start",
            about="static_loss_scale",
            kind="conflict",
        )
    elif not dynamic and not _is_positive(static):
        yield OptionError(
            f"static_loss_scale is {static!r}",
            "the loss is multiplied by it, since dynamic_loss_scale is False",
            "Pass a finite number above 0, or dynamic_loss_scale=True",
            about="static_loss_scale",
        )
    if arguments and not dynamic:
        yield OptionError(
            f"dynamic_loss_args is {dict(arguments)!r}, and dynamic_loss_scale is False",
            "these are options of a dynamic scale",
            "Pass dynamic_loss_scale=True, or leave dynamic_loss_args out",
            about=_ARGUMENTS,
            kind="conflict",
        )
    for name, value in (arguments or {}).items():
        yield from _argument_faults(name, value)


def _argument_faults(name: str, value: object) -> Iterator[OptionError]:
    """Yield an error if an option of a dynamic scale does not exist, or has a wrong value."""
    what = f"{_ARGUMENTS} has {name}={value!r}"
    about = (_ARGUMENTS, name)
    if name not in DEFAULTS:
        hint = closest(name, list(DEFAULTS))
        yield OptionError(what, "no such option exists", hint, about=about, kind="unknown")
    elif name in _COUNTS:
        if type(value) is not int or value < 1:
            why = "it has to be a number of steps"
            yield OptionError(what, why, "Pass an integer of at least 1", about=about)
    elif name == "consecutive_hysteresis":
        if not isinstance(value, bool):
            yield OptionError(what, "it has to be a bool", "Pass True or False", about=about)
    elif not _is_positive(value) or (name == "scale_factor" and not value > 1):  # type: ignore[operator]
        least = 1 if name == "scale_factor" else 0
        why = "it has to be a factor" if least else "it has to be a loss scale"
        yield OptionError(what, why, f"Pass a finite number above {least}", about=about)


def _is_positive(value: object) -> bool:
    """Return True for a finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type,operator]
