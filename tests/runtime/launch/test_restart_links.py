# SPDX-License-Identifier: Apache-2.0
"""Launchers recognize each other by the job's secret, and know of a loss."""

import json
import select
import socket
import time
from contextlib import suppress

import pytest

from smdist.launch.job_attempts import RestartRules
from smdist.launch.launcher_link import MAX_HELLO, LauncherLink, LinkError, join, pair
from smdist.launch.restart_coordinator import RestartCoordinator

SECRET = b"secret of the job"


@pytest.fixture
def coordinator(request):
    """A coordinator of algo-1 and algo-2; its address, algo-1's connection, and its log."""
    own, theirs = pair(SECRET, "algo-1")
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    lines = []
    rules = RestartRules(hosts=("algo-1", "algo-2"), max_restarts=1, start_timeout_seconds=60)
    found = RestartCoordinator(rules, SECRET, theirs, listener, lines.append)
    yield address, own, lines
    own.close()
    found.close()


def receive(link, seconds=20):
    """Wait for a message."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([link], [], [], 0.1)[0] and (messages := link.receive()):
            return messages
    raise AssertionError("no message")


def ready(*links):
    for link in links:
        link.send({"type": "ready", "attempt": -1})


def test_two_hosts_start_together(coordinator):
    address, own, _ = coordinator
    other = join(address, "algo-2", SECRET, 20)
    ready(own, other)

    assert [["start"], ["start"]] == [[m["type"] for m in receive(link)] for link in (own, other)]
    other.close()


def test_the_loss_of_a_launcher_is_told(coordinator):
    address, own, _ = coordinator
    other = join(address, "algo-2", SECRET, 20)
    ready(own, other)
    receive(own)
    other.close()

    (message,) = receive(own)
    assert ("stop", "lost", "algo-2") == (
        message["type"],
        message["kind"],
        message["culprit"]["host"],
    )


def test_a_host_without_the_secret_is_refused(coordinator, until):
    """It does not trust the coordinator either."""
    address, _, lines = coordinator
    with pytest.raises(LinkError):
        join(address, "algo-2", b"another", 20)

    stranger = socket.create_connection(address)
    stranger.sendall(b'{"host": "algo-2", "nonce": "0"}\n')
    stranger.recv(1024)
    stranger.sendall(b'{"proof": "0"}\n')

    assert b"" == stranger.recv(1024)
    until(lambda: any("does not have the secret" in line for line in lines))
    stranger.close()


@pytest.mark.parametrize(
    "sent",
    [
        *(b"\xff\n", b"[]\n", b"[" * 900 + b"\n", b"x" * (MAX_HELLO + 1), b'{"host": 3}\n{}\n'),
        b'{"host": "\\ud800", "nonce": "x"}\n',  # half of a pair, which no codec encodes
        b'{"host": "algo-2", "nonce": "\\udfff"}\n',
        b'{"host": "algo-2", "nonce": "x"}\n{"proof": "\\ud800"}\n',
        b'{"host": "algo-2", "nonce": "x"}\n{"proof": null}\n',
    ],
)
def test_strangers_do_no_harm(coordinator, sent):
    """Whatever they send, their connection is closed, and the hosts go on."""
    address, own, _ = coordinator
    with socket.create_connection(address) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(20)
        with suppress(ConnectionResetError):  # it has sent more than was read
            while stranger.recv(1024):
                pass
    other = join(address, "algo-2", SECRET, 20)
    ready(own, other)

    assert "start" == receive(own)[0]["type"]
    other.close()


def test_a_host_of_another_name_is_refused(coordinator, until):
    """Neither a host that the job does not have, nor the coordinator's own."""
    address, _, lines = coordinator
    for name in ("algo-9", "algo-1"):
        link = join(address, name, SECRET, 20)
        until(lambda link=link: select.select([link], [], [], 0)[0])
        with pytest.raises(LinkError):
            link.receive()
        link.close()

    assert 2 == sum("no other host of this job" in line for line in lines)


def test_a_changed_message_ends_the_connection():
    """Also a message that is repeated: its number is under the authentication code."""
    here, there = socket.socketpair()
    sender = LauncherLink(here, SECRET, is_coordinator=True)
    sender.send({"n": 1})
    recorded = there.recv(1024)
    sender.close()
    there.close()
    for sent in (recorded.replace(b"1}", b"2}"), recorded + recorded, recorded[1:]):
        here, there = socket.socketpair()
        receiver = LauncherLink(there, SECRET, is_coordinator=False)
        here.sendall(sent)
        with pytest.raises(LinkError):
            receiver.receive()
        here.close()
        receiver.close()


def test_silence_is_no_loss():
    """A launcher that has sent its message may wait for the answer as long as it takes."""
    one, two = pair(SECRET, "algo-1")
    one.send({"n": 1})
    began = time.monotonic()

    assert [] == one.receive()
    assert time.monotonic() - began < 4  # the time limit of a message is five seconds
    assert [{"n": 1}] == two.receive()
    one.close()
    two.close()


def test_messages_cross_whole():
    """Several at once, and one of many pieces."""
    one, two = pair(SECRET, "algo-1")
    sent = [{"n": number, "text": "x" * 3000} for number in range(5)]
    for message in sent:
        one.send(message)
    found = []
    while len(found) < 5:
        found += two.receive()

    assert sent == json.loads(json.dumps(found))
    one.close()
    with pytest.raises(LinkError):
        two.receive()
    two.close()
