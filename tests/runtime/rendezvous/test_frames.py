# SPDX-License-Identifier: Apache-2.0
"""Frames are read back as they were sent; all other data raises FrameError."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdist.dataparallel.rendezvous.participants import Participant, mismatch, parse_participant
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    KEY_BYTES,
    UNAUTHENTICATED_BYTES,
    VALUE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    greeting,
    has_secret,
    is_proof,
    parse_frame,
    parse_head,
    proof,
    require_kind,
)

NONCE = bytes(range(32))


def read(data, most_bytes=VALUE_BYTES):
    head = parse_head(data[:HEAD_BYTES], most_bytes)
    return parse_frame(head, data[HEAD_BYTES:][: head.body_bytes])


@given(
    st.sampled_from(FrameKind),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=KEY_BYTES // 4),
    st.binary(max_size=1000),
)
def test_a_frame_is_read_as_it_was_written(kind, number, key, value):
    frame = Frame(kind, number, key, value)

    assert frame == read(frame.to_bytes())


@given(st.binary(min_size=HEAD_BYTES, max_size=200))
def test_garbage_is_a_frame_or_is_refused(data):
    """Nothing else is raised, and nothing longer than allowed is waited for."""
    try:
        head = parse_head(data[:HEAD_BYTES], UNAUTHENTICATED_BYTES)
        parse_frame(head, data[HEAD_BYTES:])
    except FrameError:
        return

    assert KEY_BYTES + UNAUTHENTICATED_BYTES >= head.body_bytes


@pytest.mark.parametrize(
    "sizes", [(0, UNAUTHENTICATED_BYTES + 1), (0, 2**32 - 1), (KEY_BYTES + 1, 0)]
)
def test_a_length_beyond_the_limit_is_refused_before_it_is_read(sizes):
    head = struct.pack("!BqHI", FrameKind.SET, 0, *sizes)

    with pytest.raises(FrameError, match="too long"):
        parse_head(head, UNAUTHENTICATED_BYTES)


@given(st.binary(max_size=300))
def test_only_a_rank_introduces_itself(value):
    """Any JSON, or none, is refused unless it has a participant's fields."""
    with pytest.raises(FrameError):
        parse_participant(Frame(FrameKind.JOIN, value=value))


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 4000,
        b'{"rank": "0", "size": 1, "label": "x", "job": ""}',
        b'{"rank": true, "size": 1, "label": "x", "job": ""}',
        b'{"rank": 0, "size": 1, "label": "x", "job": "", "more": 1}',
        b'{"rank": 0, "size": 1}',
    ],
)
def test_near_misses_of_an_introduction_are_refused(value):
    with pytest.raises(FrameError):
        parse_participant(Frame(FrameKind.JOIN, value=value))


def test_an_introduction_is_read_as_it_was_written():
    participant = Participant(rank=1, size=2, label="rank 1 on ü", job="j")

    assert participant == parse_participant(read(participant.to_frame().to_bytes()))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"job": "other"}, "its job is 'other', and the job of rank 0 is 'mine'"),
        ({"size": 4}, "its WORLD_SIZE is 4, and that of rank 0 is 2"),
        ({"rank": 2}, "its RANK is 2, and WORLD_SIZE is 2"),
        ({"rank": -1}, "its RANK is -1, and WORLD_SIZE is 2"),
    ],
)
def test_a_participant_of_another_job_is_refused(changes, expected):
    first = Participant(rank=0, size=2, label="rank 0", job="mine")
    fields = {"rank": 1, "size": 2, "label": "rank 1", "job": "mine", **changes}

    assert expected == mismatch(Participant(**fields), first)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.GREETING, 1, "smdist", b"short"),
        Frame(FrameKind.GREETING, 1, "other", NONCE + b"\0"),
        Frame(FrameKind.GREETING, 2, "smdist", NONCE + b"\0"),
        Frame(FrameKind.JOIN, 1, "smdist", NONCE + b"\0"),
    ],
)
def test_another_greeting_is_refused(frame):
    with pytest.raises(FrameError):
        has_secret(frame)


def test_a_proof_holds_for_one_secret_one_role_and_one_pair_of_greetings():
    """So it can be neither replayed nor sent back to its sender."""
    ours, theirs = greeting(NONCE, b"s"), greeting(NONCE[::-1], b"s")
    right = proof(b"s", "rank", ours, theirs)
    wrong = [
        proof(b"t", "rank", ours, theirs),
        proof(b"s", "rank 0", ours, theirs),
        proof(b"s", "rank", theirs, ours),
        proof(b"s", "rank", greeting(bytes(32), b"s"), theirs),
    ]

    assert is_proof(Frame(FrameKind.PROOF, value=right), right)
    assert [False] * 4 == [is_proof(Frame(FrameKind.PROOF, value=each), right) for each in wrong]
    assert not is_proof(Frame(FrameKind.VALUE, value=right), right)


def test_a_frame_out_of_turn_is_named():
    with pytest.raises(FrameError, match=r"SET .* VALUE or TIMED_OUT"):
        require_kind(Frame(FrameKind.SET), FrameKind.VALUE, FrameKind.TIMED_OUT)
