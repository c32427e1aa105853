# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules: pure generators of who does what in which order.

`make_schedule` makes one by name, `check_schedule` judges any, `peak_in_flight` and
`least_buffers` say what it holds, `draw` shows it.
"""

from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.catalog import SCHEDULES, Kind
from smdist.modelparallel.core.schedule.check import check_schedule
from smdist.modelparallel.core.schedule.drawing import draw, parse_drawing
from smdist.modelparallel.core.schedule.held import peak_in_flight
from smdist.modelparallel.core.schedule.making import make_schedule
from smdist.modelparallel.core.schedule.messages import least_buffers
from smdist.modelparallel.core.schedule.shape import Shape

__all__ = [
    "SCHEDULES",
    "Action",
    "Do",
    "Kind",
    "Schedule",
    "Shape",
    "check_schedule",
    "draw",
    "least_buffers",
    "make_schedule",
    "parse_drawing",
    "peak_in_flight",
]
