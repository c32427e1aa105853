# SPDX-License-Identifier: Apache-2.0
"""The clock of this package, which tests replace so that they need not wait.

AWS's own time is read from AWS's answers (`api.answer_time`), because the clock of a
laptop may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A monotonic clock and a way to sleep.

    Attributes:
        monotonic: Return seconds since some moment; never goes back.
        sleep: Wait for this many seconds.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
