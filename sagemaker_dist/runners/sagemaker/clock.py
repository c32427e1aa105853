# SPDX-License-Identifier: Apache-2.0
"""Time as this room sees it, so that tests need not wait for it.

AWS's own time is another matter: it is read from AWS's answers (`api.asked_at`), for
the clock of a laptop may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How time passes here.

    Attributes:
        monotonic: Seconds since some moment; never goes back.
        sleep: Waits for this many seconds.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
