# SPDX-License-Identifier: Apache-2.0
"""Number of stages in a request whose units the user places."""

from __future__ import annotations

from smdist.modelparallel.core.planner.problem import Problem


def num_stages_by_hand(problem: Problem) -> int:
    """Return the number of stages: one more than the largest stage of the marks and the default."""
    return max([problem.default_partition or 0, *problem.marks.values()]) + 1
