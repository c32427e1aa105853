# SPDX-License-Identifier: Apache-2.0
"""Launchers know which others have ended: only a connection that was closed in order proves it."""

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from smdist.launch.host_watch import HubWatch, MemberWatch, WatchPlace, watch_hosts
from smdist.launch.launcher_link import LinkClosedError, LinkError, join
from smdist.launch.rank_ends import decode, encode

SECRET = b"secret of the job"
HOSTS = ("algo-1", "algo-2", "algo-3")
ADDRESSES = {"algo-1": "127.0.0.1", "algo-2": "10.0.0.2", "algo-3": "10.0.0.3"}


def place_of(host, port, folder, **changes):
    (folder / host).mkdir(exist_ok=True)
    fields = {
        "host": host,
        "hosts": HOSTS,
        "addresses": ADDRESSES,
        "port": port,
        "listening_address": "127.0.0.1",
        "folder": folder / host,
        "secret": SECRET,
    }
    return WatchPlace(**fields | changes)


class Job:
    """Watches of the hosts of a job, all in this process."""

    def __init__(self, folder):
        listener = socket.create_server(("127.0.0.1", 0))
        self.folder, self.port, self.lines = folder, listener.getsockname()[1], []
        self._open = ExitStack()
        self.hub = HubWatch(place_of("algo-1", self.port, folder), listener, self.lines.append)
        self._open.callback(self.hub.close)

    def member(self, host):
        found = MemberWatch(place_of(host, self.port, self.folder))
        self._open.callback(found.close)
        return found

    def link(self, host):
        """Connect as the launcher of a host does."""
        found = join(("127.0.0.1", self.port), host, SECRET, 20)
        self._open.callback(found.close)
        return found

    def ended(self, host):
        """Return the addresses in the file of a host."""
        path = self.folder / host / "ended-hosts"
        return path.read_text().split() if path.exists() else []

    def close(self):
        self._open.close()


@pytest.fixture
def job(tmp_path):
    found = Job(tmp_path)
    yield found
    found.close()


def test_a_launcher_that_ends_is_known_to_all_until_it_is_back(job, until):
    """Its host has a new launcher then; the hub itself may end, too."""
    job.member("algo-2")
    job.link("algo-3").close()
    until(lambda: ["10.0.0.3"] == job.ended("algo-1"))
    until(lambda: ["10.0.0.3"] == job.ended("algo-2"))
    job.link("algo-3")
    until(lambda: [] == job.ended("algo-1") == job.ended("algo-2"))
    job.hub.close()
    until(lambda: ["127.0.0.1"] == job.ended("algo-2"))


def test_a_launcher_that_comes_later_learns_it(job, until):
    job.link("algo-3").close()
    until(lambda: ["10.0.0.3"] == job.ended("algo-1"))
    job.member("algo-2")
    until(lambda: ["10.0.0.3"] == job.ended("algo-2"))


def test_a_connection_that_fails_proves_nothing(job, until):
    """As one that a firewall resets; a second loss shows that the first one was read before."""
    job.link("algo-2").reset()
    job.link("algo-3").close()
    until(lambda: ["10.0.0.3"] == job.ended("algo-1"))


def test_a_member_whose_connection_was_reset_connects_again(tmp_path, until):
    """It does not count the first host as ended meanwhile."""
    job = Job(tmp_path)
    first = job.link("algo-2")
    job.member("algo-2")  # the hub resets the older of two connections of a host
    until(lambda: is_reset(first))
    job.link("algo-3").close()
    until(lambda: ["10.0.0.3"] == job.ended("algo-2"))
    job.close()


def is_reset(link):
    try:
        link.receive()
    except LinkError as error:
        return not isinstance(error, LinkClosedError)
    return False


def test_a_launcher_that_was_killed_is_known(job, until):
    """The kernel closes its connection; this is what happens as a container is removed."""
    script = (
        "import sys, time; from smdist.launch.launcher_link import join\n"
        "link = join(('127.0.0.1', int(sys.argv[1])), 'algo-3', sys.argv[2].encode(), 20)\n"
        "print('joined', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(job.port), SECRET.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert "joined\n" == launcher.stdout.readline()
        job.member("algo-2")
        launcher.send_signal(signal.SIGKILL)
        until(lambda: ["10.0.0.3"] == job.ended("algo-2"))


def test_a_stranger_cannot_report_the_end_of_a_launcher(job, until):
    with pytest.raises(LinkError):
        join(("127.0.0.1", job.port), "algo-2", b"another", 20)
    stranger = socket.create_connection(("127.0.0.1", job.port))
    stranger.sendall(b'{"host": "algo-2", "nonce": "0"}\n')
    stranger.recv(1024)
    stranger.sendall(b'{"proof": "0"}\n')
    assert b"" == stranger.recv(1024)
    stranger.close()
    job.link("algo-3").close()
    until(lambda: ["10.0.0.3"] == job.ended("algo-1"))


def test_a_hub_that_cannot_listen_or_does_not_exist_ends_nothing(tmp_path):
    """The first host says so; the others end as fast as without a watch."""
    lines = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with watch_hosts(place_of("algo-1", port, tmp_path), lines.append):
            pass
        start = time.monotonic()
        with watch_hosts(place_of("algo-2", port, tmp_path), lines.append):
            time.sleep(0.2)  # it connects, and nobody answers: as from a launcher that was stopped
        assert 2 > time.monotonic() - start
    assert 1 == len(lines)
    assert f"port {port}" in lines[0]
    assert not (tmp_path / "algo-2/ended-hosts").exists()


@pytest.mark.parametrize(
    ("changes", "is_useful"),
    [
        ({}, True),
        ({"addresses": {**ADDRESSES, "algo-1": "10.0.0.2"}}, False),
        ({"secret": b""}, False),
        ({"hosts": ("algo-2",)}, False),
    ],
)
def test_it_is_used_where_hosts_can_be_told_apart_and_have_a_secret(tmp_path, changes, is_useful):
    assert is_useful == place_of("algo-2", 1, tmp_path, **changes).is_useful


def test_emulated_hosts_do_not_lose_their_network(tmp_path):
    own = {**ADDRESSES, "algo-1": "10.0.0.1"}

    assert not place_of("algo-2", 1, tmp_path).can_lose_network
    assert place_of("algo-2", 1, tmp_path, addresses=own).can_lose_network


def test_launchers_tell_each_other_how_ranks_ended(job):
    """Also one that comes later, and one that ends at once after its last rank."""
    second = job.member("algo-2")
    second.ends.add_own(1, 0)

    assert 0 == job.hub.ends.wait(1, 20)

    third = job.member("algo-3")
    third.ends.add_own(2, 137)
    third.close()

    assert 137 == second.ends.wait(2, 20)
    assert 0 == job.member("algo-3").ends.wait(1, 20)

    job.hub.ends.add_own(0, 3)
    job.hub.close()

    assert 3 == second.ends.wait(0, 20)
    assert second.ends.wait(7, 0) is None


@pytest.mark.parametrize("found", [None, {}, [1], [[1]], [[1, 2, 3]], [["1", 0]], [[True, 0]]])
def test_ends_of_another_release_are_refused(found):
    assert {2: 0, 3: 1} == decode(encode({3: 1, 2: 0}))

    with pytest.raises(LinkError):
        decode(found)
