# SPDX-License-Identifier: Apache-2.0
"""Ranks without torch connect, or their errors name the missing and the lost ranks."""

import os
import signal
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from meetings import meet, meeting_of, start
from ports import free_port

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous import store_server
from smdist.dataparallel.rendezvous.store_connection import connect_to_server
from smdist.dataparallel.rendezvous.store_server import StoreServer
from smdist.dataparallel.rendezvous.tcp_store import open_store


@pytest.fixture
def port():
    return free_port()


def exchange(store, rank, size=3):
    store.set(f"word/{rank}", b"\0\xff%d" % rank)
    return [store.get(f"word/{other}", 10) for other in range(size)]


def test_every_rank_hears_every_word(port):
    """Bytes arrive unchanged, in any order of the ranks."""
    assert [[b"\0\xff0", b"\0\xff1", b"\0\xff2"]] * 3 == meet([2, 1, 0], 3, port, exchange)


def test_counts_are_shared(port):
    """Each rank adds and sees a sum that no other saw."""
    sums = meet(range(4), 4, port, lambda store, rank: store.add("n", 2))

    assert [2, 4, 6, 8] == sorted(sums)


def test_a_deleted_word_is_gone(port):
    """For all ranks; a word that is not there can be deleted, too, and one can be set again."""

    def task(store, rank):
        store.set("w", b"secret")
        store.delete("w")
        store.delete("never set")
        with pytest.raises(TimeoutError):
            store.get("w", 0.1)
        store.set("w", b"new")
        return store.get("w", 1)

    assert [b"new"] == meet([0], 1, port, task)


def test_all_words_together_have_a_limit(port, monkeypatch):
    """A word that is replaced or deleted makes room; one too many ends the job, with a reason."""
    monkeypatch.setattr(store_server, "STORE_BYTES", 1000)

    def task(store, rank):
        for _ in range(3):
            store.set("w", bytes(900))
        store.delete("w")
        store.set("x", bytes(900))
        store.set("y", bytes(900))

    (error,) = meet([0], 1, port, task)

    assert isinstance(error, LaunchError)
    assert "1000 bytes" in error.what


def test_the_queue_of_new_connections_is_the_longest(port):
    """A thousand ranks connect at once; asyncio alone would let 100 wait."""
    listener = socket.create_server(("127.0.0.1", port), backlog=socket.SOMAXCONN)
    server = StoreServer(listener, meeting_of(0, 1, port))
    link, _ = connect_to_server(meeting_of(0, 1, port), "127.0.0.1")  # the server serves
    # the kernel gives the queue length of a listening socket in the field tcpi_sacked
    (length,) = struct.unpack_from(
        "I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28
    )
    link.close()
    server.close("ended")

    assert min(socket.SOMAXCONN, int(Path("/proc/sys/net/core/somaxconn").read_text())) == length


def test_the_store_listens_at_one_address(port):
    """At another address of the same machine nobody answers."""

    def task(store, rank):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
        return store.add("n", 1)

    assert [1] == meet([0], 1, port, task, listening_address="127.0.0.1")


def test_a_rank_that_is_dropped_at_the_end_leaves_no_traceback(port, capfd, caplog):
    with ExitStack() as stack:

        def task(store, rank):
            address = ("127.0.0.1", port)
            stack.enter_context(socket.create_connection(address, timeout=5))
            time.sleep(0.2)  # until the server reads from it

        meet([0], 1, port, task)

    assert "" == capfd.readouterr().err + caplog.text


def test_a_word_of_a_mebibyte_passes(port):
    word = os.urandom(1 << 20)

    def task(store, rank):
        if rank == 0:
            store.set("w", word)
        return store.get("w", 10) == word

    assert [True, True] == meet([0, 1], 2, port, task)


def test_a_word_that_nobody_sets_is_late(port):
    start = time.monotonic()
    (error,) = meet([0], 1, port, lambda store, rank: store.get("w", 0.2))

    assert isinstance(error, TimeoutError)
    assert 5 > time.monotonic() - start


def test_rank_0_names_the_missing_ranks(port, capsys):
    """Once after a while, then less often; without the ranks that have joined."""

    def end(store, rank):
        time.sleep(2.4)
        raise ValueError

    meet([0, 2], 12, port, end, report_seconds=0.5)
    first, second = capsys.readouterr().err.splitlines()

    names = "rank 1, rank 3, rank 4, rank 5, rank 6, rank 7, rank 8, rank 9 and 2 others"
    assert f"smdist: has waited 0.5 s at 127.0.0.1:{port} for {names} of 12 ranks" == first
    assert second.startswith(f"smdist: has waited 2 s at 127.0.0.1:{port} for ")


def test_others_report_that_they_wait_for_rank_0(port, capsys):
    """The first few ranks: of a thousand that would be many lines."""
    meet([1, 8], 9, port, exchange, timeout_seconds=4, report_seconds=0.7)
    lines = capsys.readouterr().err.splitlines()

    assert 2 == len(lines)  # none of rank 8
    assert all(line.endswith(f" s at 127.0.0.1:{port} for rank 0 of 9 ranks") for line in lines)


def test_ranks_that_meet_at_once_print_nothing(port, capsys):
    meet(range(3), 3, port, exchange)

    assert "" == capsys.readouterr().err


def test_nothing_is_left_when_ranks_have_met(port):
    """No thread, no port: the next meeting is at the same place, again and again."""
    for _ in range(3):
        meet(range(3), 3, port, exchange)

    assert not [each for each in threading.enumerate() if each.name == "smdist-store"]
    with socket.create_server(("", port)):
        pass


def test_a_rank_that_hurries_to_the_next_meeting_waits_for_it(port):
    """Rank 1 connects again before rank 0 has left the first meeting."""
    met = threading.Event()

    def first(store, rank):
        store.set(f"word/{rank}", b"x")
        store.get("word/1", 10)
        if rank == 0:
            met.wait(10)
            time.sleep(0.3)

    def twice(rank):
        meet([rank], 2, port, first)
        met.set()
        return meet([rank], 2, port, lambda store, rank: exchange(store, rank, 2))

    others = threading.Thread(target=twice, args=[0])
    others.start()
    (words,) = twice(1)
    others.join(30)

    assert [b"\0\xff0", b"\0\xff1"] == words


def test_a_port_in_use_is_named_with_the_hint(port):
    with (
        socket.create_server(("", port)),
        pytest.raises(LaunchError) as caught,
        open_store(meeting_of(0, 2, port)),
    ):
        pass

    assert (("MASTER_PORT",), "conflict") == (caught.value.about, caught.value.kind)


def test_a_rank_0_that_never_comes_is_named(port):
    (error,) = meet([1], 2, port, exchange, timeout_seconds=0.5)

    assert isinstance(error, LaunchError)
    assert (("MASTER_ADDR",), "timeout") == (error.about, error.kind)


def test_a_listener_that_never_speaks_is_no_rank_0(port):
    """Another process has the port: it accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", port)):
        (error,) = meet([1], 2, port, exchange, timeout_seconds=0.5)

    assert (("MASTER_ADDR",), "timeout") == (error.about, error.kind)


def test_the_reason_of_one_rank_ends_the_wait_of_all(port):
    """Its own words reach the others at once."""

    def task(store, rank):
        if rank == 1:
            store.get("2 is here", 60)  # who comes later finds nobody
            raise ValueError("no such file")
        store.set(f"{rank} is here", b"")
        store.get("never", 60)

    first, one, two = meet(range(3), 3, port, task)

    assert isinstance(one, ValueError)
    for error in (first, two):
        assert isinstance(error, LaunchError)
        assert ("lost", 1) == (error.kind, error.culprit)
        assert (
            "rank 1 on host 1 raised ValueError: no such file: a job starts only if all ranks"
            " connect, and this rank has ended before. Read the log of the rank that this error"
            " names; the first error in it is the cause."
        ) == str(error)


@pytest.mark.parametrize(("dies", "waits"), [(0, 1), (1, 0)])
def test_a_rank_that_dies_ends_the_wait_of_the_other(port, dies, waits):
    """A killed rank sends nothing; the other names it all the same, within seconds."""
    code = "store.get('never' if {} else 'ready', 60); os.kill(os.getpid(), signal.SIGKILL)"
    processes = {
        dies: start(dies, 2, port, code.format(0)),
        waits: start(waits, 2, port, "store.set('ready', b''); " + code.format(1)),
    }
    try:
        _, said = processes[waits].communicate(timeout=30)
        assert -signal.SIGKILL == processes[dies].wait(5)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()

    lost = f"LaunchError: rank {dies} on host {dies} has ended before all ranks were connected"

    assert lost in said


def test_a_killed_rank_0_leaves_its_port_to_the_next(port):
    """A restart finds it free at once, with old connections still in the kernel."""
    code = "store.set('ready', b''); store.get('gone', 10); time.sleep(60)"

    def outlive(store, rank):
        store.get("ready", 10)
        first.kill()
        store.set("gone", b"")
        store.get("never", 10)

    with start(0, 2, port, code) as first:
        (error,) = meet([1], 2, port, outlive)

    assert isinstance(error, LaunchError)
    assert [[b"\0\xff0", b"\0\xff1"]] * 2 == meet(
        [0, 1], 2, port, lambda store, rank: exchange(store, rank, 2)
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size": 3}, "its WORLD_SIZE is 3"),
        ({"job": "other"}, "its job is 'other'"),
        ({"rank": 0}, "rank 0 has joined already"),
    ],
)
def test_a_rank_of_another_job_is_refused_and_the_job_starts(port, options, expected, capfd):
    """Both ranks of the job meet all the same."""
    rank, size = options.pop("rank", 1), options.pop("size", 2)

    def task(store, of):
        if of == 0:
            other = meeting_of(rank, size, port, **options)
            with pytest.raises(LaunchError) as caught:
                connect_to_server(other, "127.0.0.1")
            assert "refused" == caught.value.kind
            assert caught.value.why.startswith(expected)
            store.set("go", b"")
        return exchange(store, of, 2)

    def later(store, of):
        return exchange(store, of, 2)

    done = []
    first = threading.Thread(target=lambda: done.extend(meet([0], 2, port, task)))
    first.start()
    time.sleep(0.5)  # rank 1 comes after the stranger
    done.extend(meet([1], 2, port, later))
    first.join(30)

    assert [[b"\0\xff0", b"\0\xff1"]] * 2 == done
    assert expected in capfd.readouterr().err
