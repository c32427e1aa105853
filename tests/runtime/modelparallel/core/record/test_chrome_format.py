# SPDX-License-Identifier: Apache-2.0
"""Events of a recorded run have names in the trace by which a reader finds them."""

import pytest

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.record.chrome_format import chrome_trace
from smdist.modelparallel.core.record.events import Event, Track

EDGE = Edge(value="x", source=0, target=1, num_bytes=8, has_gradient=True)
TIMES = {"step": 0, "start": 0.0, "end": 1.0}
SEND = Event(kind="send", detail="F", stage=0, microbatch=3, **TIMES)
FORWARD = Event(kind="F", stage=0, microbatch=3, **TIMES)
OTHER = Event(kind="optimizer", stage=-1, microbatch=-1, **TIMES)


@pytest.mark.parametrize(
    ("event", "has_stages", "name"),
    [
        (FORWARD, False, "F3"),
        (FORWARD, True, "0F3"),
        (SEND, False, "send F3"),
        (SEND, True, "send 0F3"),
        (OTHER, True, "optimizer"),
    ],
)
def test_only_a_message_is_named_after_its_kind_and_its_pass(event, has_stages, name):
    track = Track(rank=0, pipeline_rank=0, replica=0, host="algo-1", events=(event,))
    trace = chrome_trace([track], [EDGE], has_stages=has_stages)

    assert [name] == [row["name"] for row in trace["traceEvents"] if row["ph"] == "X"]
