# SPDX-License-Identifier: Apache-2.0
"""Unknown connections to the port do not keep ranks from connecting, and see no secret."""

import os
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from meetings import meet, meeting_of
from ports import free_port

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous import store_server
from smdist.dataparallel.rendezvous.store_connection import connect_to_server
from smdist.dataparallel.rendezvous.store_protocol import (
    NO_MATCH,
    ONE_SIDED,
    Frame,
    FrameKind,
    greeting,
)

SECRET = b"a text that nobody guesses"


@pytest.fixture
def port():
    return free_port()


def among(port, disturb, **options):
    """What two ranks say to each other while `disturb` runs between rank 0's first words."""

    def task(store, rank):
        if rank == 0:
            disturb()
            store.set("go", b"")
        store.get("go", 20)
        store.set(f"word/{rank}", b"%d" % rank)
        return store.get(f"word/{1 - rank}", 10)

    return meet([0, 1], 2, port, task, **options)


def said_to(port, data, *, hangs_up=True):
    """Send these bytes and read until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.sendall(data)
        if hangs_up:
            stranger.shutdown(socket.SHUT_WR)
        answer = b""
        while part := stranger.recv(4096):
            answer += part
        return answer


HELLO = greeting(bytes(32), None).to_bytes()
JOIN = b'{"rank": 1, "size": 2, "label": "x", "job": ""}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(100_000),
        b"\xff" * 64,
        HELLO[:-1],
        HELLO + HELLO,
        HELLO + Frame(FrameKind.SET, 0, "word/1", b"stolen").to_bytes(),
        HELLO + struct.pack("!BqHI", FrameKind.JOIN, 0, 0, 2**32 - 1),
        HELLO + Frame(FrameKind.JOIN, value=b"[]").to_bytes(),
        Frame(FrameKind.LEAVE).to_bytes(),
    ],
    ids=range(11),
)
def test_garbage_is_dropped_and_the_ranks_meet(port, data):
    """Cut short, huge, of another protocol, or out of turn."""

    def disturb():
        with suppress(ConnectionResetError):  # hung up with our bytes unread
            said_to(port, data)

    assert [b"1", b"0"] == among(port, disturb)


def test_silent_strangers_hold_up_nobody_and_are_dropped(port, monkeypatch):
    """Forty of them; each is hung up on in the end."""
    monkeypatch.setattr(store_server, "_JOIN_SECONDS", 0.5)
    with ExitStack() as stack:
        silent = []

        def disturb():
            for _ in range(40):
                stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
                silent.append(stack.enter_context(stranger))
            assert [b""] * 40 == [stranger.recv(1) for stranger in silent]

        assert [b"1", b"0"] == among(port, disturb)


def test_more_strangers_than_there_is_room_for_are_hung_up_on(port, monkeypatch):
    """A rank that is not admitted connects again."""
    monkeypatch.setattr(store_server, "_MAX_UNJOINED", 3)
    monkeypatch.setattr(store_server, "_JOIN_SECONDS", 0.5)
    with ExitStack() as stack:

        def disturb():
            for _ in range(10):
                stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
                stack.enter_context(stranger)

        assert [b"1", b"0"] == among(port, disturb)


def test_silent_strangers_in_every_place_do_not_keep_a_rank_out(port, monkeypatch):
    """The one that has been silent longest makes room, long before its time is over."""
    monkeypatch.setattr(store_server, "_MAX_UNJOINED", 3)
    with ExitStack() as stack:

        def disturb():
            for _ in range(3):
                stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
                stack.enter_context(stranger)
            time.sleep(0.2)  # until they have their places
            begin = time.monotonic()
            link, _ = connect_to_server(meeting_of(2, 3, port), "127.0.0.1")
            link.send(Frame(FrameKind.LEAVE), 1.0)
            link.close()
            assert time.monotonic() - begin < store_server._JOIN_SECONDS / 2

        def task(store, rank):
            if rank == 0:
                disturb()
            return store.add("n", 1)

        assert [1, 2] == sorted(meet([0, 1], 3, port, task))


def test_a_peer_that_drips_is_dropped_in_time(port, monkeypatch):
    """A byte now and then does not extend its time."""
    monkeypatch.setattr(store_server, "_JOIN_SECONDS", 0.5)

    def disturb():
        begin = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            try:
                for byte in HELLO:
                    stranger.sendall(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                pass
        assert 1.9 > time.monotonic() - begin

    assert [b"1", b"0"] == among(port, disturb)


def test_ranks_with_one_secret_meet(port):
    assert [b"1", b"0"] == among(port, lambda: None, secret=SECRET)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(b"another", NO_MATCH), (None, ONE_SIDED)],
)
def test_a_rank_without_the_secret_is_refused(port, theirs, expected, capfd):
    """Both sides report the reason; the secret is in no message."""
    caught = []

    def disturb():
        try:
            connect_to_server(meeting_of(1, 2, port, secret=theirs), "127.0.0.1")
        except Exception as error:
            caught.append(str(error))

    assert [b"1", b"0"] == among(port, disturb, secret=SECRET)
    shown = caught[0] + "".join(capfd.readouterr())
    assert 2 == shown.count(expected)
    assert SECRET.decode() not in shown


def test_nothing_is_stored_before_the_proof(port):
    """A stranger that continues without a proof changes no value."""

    def disturb():
        hello = greeting(bytes(32), SECRET).to_bytes()
        words = (
            Frame(FrameKind.JOIN, value=JOIN).to_bytes()
            + Frame(FrameKind.SET, 0, "word/1").to_bytes()
        )
        with suppress(ConnectionResetError):
            said_to(port, hello + words)

    assert [b"1", b"0"] == among(port, disturb, secret=SECRET)


@pytest.mark.parametrize("theirs", [b"another", None])
def test_nobody_joins_in_the_place_of_rank_1(port, theirs):
    """A stranger that is there before rank 1 reads nothing and takes no place."""

    def disturb():
        for _ in range(3):
            with pytest.raises(LaunchError):
                connect_to_server(meeting_of(1, 2, port, secret=theirs), "127.0.0.1")

    assert [b"1", b"0"] == among(port, disturb, secret=SECRET)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 64,
        Frame(FrameKind.SET, 0, "word", b"x").to_bytes()[:-1],
        Frame(FrameKind.WELCOME).to_bytes(),
        struct.pack("!BqHI", FrameKind.SET, 0, 0, 2**32 - 1),
        Frame(FrameKind.ADD, 1, "go").to_bytes(),
    ],
    ids=range(6),
)
def test_a_rank_that_breaks_the_protocol_ends_the_wait_of_the_others(port, data):
    """Within seconds, with its name."""

    def task(store, rank):
        store.set("go", b"no number")
        link, _ = connect_to_server(meeting_of(1, 2, port), "127.0.0.1")
        link._connection.sendall(data)
        link.close()
        store.get("never", 60)

    (error,) = meet([0], 2, port, task)

    assert "lost" == error.kind
    assert error.what.startswith("rank 1 on host 1 ")


def test_a_false_rank_0_learns_nothing_and_is_refused(port):
    """It echoes what it receives, but the two greetings and the two proofs must differ."""

    def echo():
        with socket.create_server(("127.0.0.1", port)) as false:
            connection, _ = false.accept()
            with connection:
                while data := connection.recv(4096):
                    connection.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    (error,) = meet([1], 2, port, lambda store, rank: None, secret=SECRET)
    thread.join(10)

    assert ("refused", NO_MATCH) == (error.kind, error.why)
