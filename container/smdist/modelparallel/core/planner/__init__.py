# SPDX-License-Identifier: Apache-2.0
"""Planner: finds the fastest division of a model over a cluster, and explains the choice."""

from smdist.modelparallel.core.planner.plan_search import find_plan
from smdist.modelparallel.core.planner.problem import Problem

__all__ = ["Problem", "find_plan"]
