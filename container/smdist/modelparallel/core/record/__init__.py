# SPDX-License-Identifier: Apache-2.0
"""Record of a run: actions and messages of each rank with their times; export as a trace."""

from smdist.modelparallel.core.record.chrome_format import chrome_trace
from smdist.modelparallel.core.record.events import ACTIONS, RECEIVE, SEND, Event, Track
from smdist.modelparallel.core.record.message_pairs import Transfer, transfers

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
