# SPDX-License-Identifier: Apache-2.0
"""The clock of this package, which tests replace so that they do not wait.

Times of AWS are not compared with this machine's clock, which may be wrong. AWS's current time is
read from its answers (`api.answer_time`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Functions for the time and for waiting.

    Attributes:
        monotonic: Function that returns the seconds since a fixed moment, like time.monotonic.
        sleep: Function that waits for a number of seconds, like time.sleep.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
