# SPDX-License-Identifier: Apache-2.0
"""Data of a recorded training run, and its export as a trace.

The data are the actions of each rank and the messages between ranks, with their times.
"""

from smdist.modelparallel.core.record.chrome_format import chrome_trace
from smdist.modelparallel.core.record.events import (
    ACTIONS,
    RECEIVE,
    REDUCE,
    SEND,
    Event,
    Track,
)
from smdist.modelparallel.core.record.message_pairs import Transfer, transfers
from smdist.modelparallel.core.record.trace_reader import read_trace

__all__ = [
    "ACTIONS",
    "RECEIVE",
    "REDUCE",
    "SEND",
    "Event",
    "Track",
    "Transfer",
    "chrome_trace",
    "read_trace",
    "transfers",
]
