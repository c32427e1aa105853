# SPDX-License-Identifier: Apache-2.0
"""Finds the fastest plan for a model on a cluster, and says why it is that one."""

from smdist.modelparallel.core.planner.find import find_plan
from smdist.modelparallel.core.planner.problem import Problem

__all__ = ["Problem", "find_plan"]
