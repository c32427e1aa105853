# SPDX-License-Identifier: Apache-2.0
"""How many stages people ask for who place units themselves."""

from __future__ import annotations

from smdist.modelparallel.core.planner.problem import Problem


def num_stages_by_hand(problem: Problem) -> int:
    """One more than the last stage that a mark or the default names."""
    return max([problem.default_partition or 0, *problem.marks.values()]) + 1
