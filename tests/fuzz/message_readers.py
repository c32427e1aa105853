# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of messages between processes, and of what a rank leaves behind."""

from __future__ import annotations

import json
from dataclasses import asdict

from byte_source import ByteSource, ValidDocuments
from reader_list import MEMORY, encoded, kept, target

from sagemaker_dist.runners.local.opt_ml_tree import FAILURE_FIELDS, parse_failure_fields
from smdist.dataparallel.rendezvous.participants import Participant, mismatch, parse_participant
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    KEY_BYTES,
    UNAUTHENTICATED_BYTES,
    Frame,
    FrameError,
    FrameKind,
    greeting,
    has_secret,
    parse_frame,
    parse_head,
)
from smdist.launch.failure_file import MAX_CHARACTERS, describe, fields_of
from smdist.launch.guard_protocol import (
    GuardMessageError,
    RankFault,
    Report,
    parse_message,
    read_fault,
)
from smdist.launch.traceback_parser import find_culprit


@target
def store_frame(source: ByteSource) -> None:
    """The frames of the rendezvous, and the first of them, the greeting."""
    is_greeting = source.below(4) == 0
    data = greeting(source.bytes(33), b"").to_bytes() if is_greeting else source.rest()
    data += bytes(HEAD_BYTES)
    if not is_greeting and data[0] & 64:  # a kind that exists, and lengths that are allowed
        data = bytes([1 + data[0] % 11, *data[1:9], 0, data[10] % 8, 0, 0, 0, data[14], *data[15:]])
    try:
        head = parse_head(data[:HEAD_BYTES], UNAUTHENTICATED_BYTES)
        assert head.body_bytes <= KEY_BYTES + UNAUTHENTICATED_BYTES
        body = data[HEAD_BYTES:][: head.body_bytes]
        frame = parse_frame(head, body)
        assert frame.to_bytes()[HEAD_BYTES:] == body
        has_secret(frame)
    except FrameError:
        return


_PARTICIPANT = Participant(rank=1, size=4, label="rank 1 on algo-2", job="j")
_PARTICIPANTS = ValidDocuments(asdict(_PARTICIPANT))


@target
def participant(source: ByteSource) -> None:
    """The description that a rank sends when it joins."""
    value = encoded(source.json_text(_PARTICIPANTS))
    kind = FrameKind.JOIN if source.below(8) else FrameKind.SET
    try:
        joined = parse_participant(Frame(kind, value=value))
    except FrameError:
        return
    assert joined.label is not None
    mismatch(joined, _PARTICIPANT)


_FAULT = RankFault(kind="lost", exception="PeerError", about="inputs", culprit=2, operation="sum")
_REPORT = asdict(Report(rank=3, status=1, at_seconds=17.5, error="a.B: text", frame="f:1 in g"))
_MESSAGES = ValidDocuments(
    _REPORT,
    {**_REPORT, "fault": asdict(_FAULT), "stopped": True, "status": -9},
    {"rank": 3},
    {"rank": None},
)
_FAULT_FILE = MEMORY / "fault.json"
_FAULTS = ValidDocuments(asdict(_FAULT))
_FAILURES = ValidDocuments(
    {**fields_of(Report(rank=1, status=1, at_seconds=1.0), "algo-1"), **asdict(_FAULT)}
)


@target
def guard_message(source: ByteSource) -> None:
    """Messages of a rank's guard to the launcher, and the failure that it makes of them."""
    text = source.json_text(_MESSAGES)
    try:
        found = parse_message(text.encode("utf-8", "surrogatepass"))
    except GuardMessageError:
        return
    if isinstance(found, Report):
        assert len(describe(found, "algo-1")) <= MAX_CHARACTERS
        json.dumps(fields_of(found, "algo-1"))
        assert 0 <= found.distance <= 4
        assert parse_message(found.encode()) == found


@target
def fault_file(source: ByteSource) -> None:
    """The file in which a rank describes the exception that has ended it."""
    found = read_fault(kept(_FAULT_FILE, source.json_text(_FAULTS)))
    if found is not None:
        assert isinstance(found.kind, str)
        assert isinstance(found.culprit, int | None)


@target
def failure_fields(source: ByteSource) -> None:
    """The file in which a launcher describes a failure for the local runner."""
    found = parse_failure_fields(encoded(source.json_text(_FAILURES)))
    assert FAILURE_FIELDS >= found.keys()


_TRACEBACKS = (
    'Traceback (most recent call last):\n  File "/opt/ml/code/a.py", line 3, in f\n    g()\n',
    "ValueError: boom\n",
    "[rank3]: ",
    "/opt/ml/code/a.py:12: UserWarning: text\n  return f(x)\n",
    "  + Exception Group Traceback (most recent call last):\n",
    "    +-+---------------- 1 ----------------\n",
    "  | ",
    "[[{{node a}}]]\n",
    "tensorflow.python.framework.errors_impl.AbortedError: {{function_node __wrapped__}} x\n",
    "\n",
    "During handling of the above exception, another exception occurred:\n\n",
)


@target
def traceback_text(source: ByteSource) -> None:
    """The last lines that a rank has printed."""
    parts = []
    for _ in range(source.below(32)):
        is_known = source.below(8) < 6
        parts.append(source.pick(_TRACEBACKS).encode() if is_known else source.bytes(12))
    error, frame = find_culprit(b"".join(parts) + source.rest(), "/opt/ml/code")
    assert isinstance(error, str)
    assert isinstance(frame, str)
