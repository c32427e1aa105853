# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: pure functions that return the order of actions of each rank.

* `make_schedule` makes a schedule by name, and `check_schedule` checks any schedule.
* `peak_in_flight` counts the microbatches whose activations each rank holds at the same time.
* `least_buffers` counts the message buffers that each channel between two ranks needs.
* `draw` draws a schedule as text.
"""

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.catalog import SCHEDULES, ScheduleKind
from smdist.modelparallel.core.schedule.channels import least_buffers
from smdist.modelparallel.core.schedule.drawing import draw, parse_drawing
from smdist.modelparallel.core.schedule.in_flight import most_in_flight, peak_in_flight
from smdist.modelparallel.core.schedule.schedule_check import check_schedule
from smdist.modelparallel.core.schedule.schedule_factory import make_schedule
from smdist.modelparallel.core.schedule.schedule_shape import Shape

__all__ = [
    "SCHEDULES",
    "Action",
    "Do",
    "Schedule",
    "ScheduleKind",
    "Shape",
    "check_schedule",
    "draw",
    "least_buffers",
    "make_schedule",
    "most_in_flight",
    "parse_drawing",
    "peak_in_flight",
]
