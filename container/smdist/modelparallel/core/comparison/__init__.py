# SPDX-License-Identifier: Apache-2.0
"""Comparison of a plan's prediction with a recorded run, by part of the step.

compare_plan.py       predicted and measured parts
advice.py             what to change where they differ
comparison_text.py    the table for users
"""

from smdist.modelparallel.core.comparison.compare_plan import (
    Advice,
    Comparison,
    Part,
    compare_plan,
)
from smdist.modelparallel.core.comparison.comparison_text import comparison_text

__all__ = ["Advice", "Comparison", "Part", "compare_plan", "comparison_text"]
