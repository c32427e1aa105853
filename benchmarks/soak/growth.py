# SPDX-License-Identifier: Apache-2.0
"""Growth of what ranks hold, fitted to samples after a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP = 0.3  # share of the time that is left out: caches fill
# Most that the fitted line may rise from the end of the warm-up to the end.
# Ranks connect at first need: a world in which two have not met yet holds fewer descriptors.
LIMITS = {"memory": 16.0 * (1 << 20), "descriptors": 3.0, "threads": 1.0}


@dataclass(frozen=True, slots=True)
class Growth:
    """Line through the samples of one quantity.

    Attributes:
        first: Value of the line at the end of the warm-up.
        last: Value of the line at the end.
        limit: Most that `last` may be above `first`.
    """

    first: float
    last: float
    limit: float

    @property
    def is_too_much(self) -> bool:
        """Return whether the quantity grows."""
        return self.last - self.first > self.limit


def growth(times: Sequence[float], values: Sequence[float], limit: float) -> Growth | None:
    """Fit a line by least squares; None if there are fewer than three samples after the warm-up."""
    if not times:
        return None
    start = times[0] + WARM_UP * (times[-1] - times[0])
    kept = [(t, v) for t, v in zip(times, values, strict=True) if t >= start]
    if len(kept) < 3:
        return None
    mean_t = sum(t for t, _ in kept) / len(kept)
    mean_v = sum(v for _, v in kept) / len(kept)
    spread = sum((t - mean_t) ** 2 for t, _ in kept)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in kept) / spread if spread else 0.0
    return Growth(
        mean_v + slope * (kept[0][0] - mean_t), mean_v + slope * (kept[-1][0] - mean_t), limit
    )
