# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: pure generators of who does what in which order."""

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.catalog import SCHEDULES, Kind, make_schedule
from smdist.modelparallel.core.schedule.held import peak_in_flight
from smdist.modelparallel.core.schedule.shape import Shape

__all__ = [
    "SCHEDULES",
    "Action",
    "Do",
    "Kind",
    "Schedule",
    "Shape",
    "make_schedule",
    "peak_in_flight",
]
