# SPDX-License-Identifier: Apache-2.0
"""What happened in a run: which rank did what, and when."""

from smdist.modelparallel.core.record.chrome import chrome_trace
from smdist.modelparallel.core.record.event import ACTIONS, RECEIVE, SEND, Event, Track
from smdist.modelparallel.core.record.messages import Transfer, transfers

__all__ = [
    "ACTIONS",
    "RECEIVE",
    "SEND",
    "Event",
    "Track",
    "Transfer",
    "chrome_trace",
    "transfers",
]
