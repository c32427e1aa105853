# SPDX-License-Identifier: Apache-2.0
"""Plan that divides a model over ranks: made by the planner or by hand, saved as a JSON file."""

from smdist.modelparallel.core.plan.fingerprint import Fingerprint, UnitPrint
from smdist.modelparallel.core.plan.forecast import Forecast, RankMemory, Rejected, StageForecast
from smdist.modelparallel.core.plan.plan import Plan

__all__ = [
    "Fingerprint",
    "Forecast",
    "Plan",
    "RankMemory",
    "Rejected",
    "StageForecast",
    "UnitPrint",
]
