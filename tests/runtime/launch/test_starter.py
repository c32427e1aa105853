# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts of two ranks each, started without torchrun; servers and their bell."""

import json
import os
import signal
import socket
import time
from contextlib import suppress

import pytest
from ports import free_port

from sagemaker_dist.contract import KEY, DataParallel, render
from smdist.dataparallel.task_server_protocol import ENDED, FAILED, MAX_LINE, Greeting, watch_host
from smdist.launch import task_starter
from smdist.launch.task_starter import ServerConnections

pytestmark = pytest.mark.timeout(120)

HOSTS = ["127.0.0.1", "127.0.0.2"]
SECRET = b"a text that nobody guesses"
TRAIN = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "SMDIST_ADDRESS", "SMDIST_HOST_LABEL", "SM_CURRENT_HOST", "OMP_NUM_THREADS")
seen = {name: os.environ[name] for name in names}
seen |= {"argv": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd()}
seen["tf"] = os.environ.get("TF_CONFIG")
path = os.path.join(os.environ["SM_MODEL_DIR"], os.environ["RANK"] + ".json")
open(path + "~", "w").write(json.dumps(seen))
os.rename(path + "~", path)
if "--boom" in sys.argv and os.environ["RANK"] == "2":
    raise ValueError("boom")
if "--wait" in sys.argv:
    time.sleep(60)
"""
STARTING = """
import os, sys
for level, text in ("I", "oneDNN"), ("W", "slow"):
    sys.stderr.write(level + "0000 00:00:1795337685.464837   22672 port.cc:153] " + text + "\\n")
print("level", os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


@pytest.fixture
def port():
    return free_port("")


@pytest.fixture
def start(stage, port):
    """Start one launcher per host, for ranks of TensorFlow."""
    (stage.root / "modules").mkdir()
    (stage.root / "modules/tensorflow.py").write_text("")  # whether it is there is all that counts
    path = os.pathsep.join([str(stage.root / "modules"), os.environ.get("PYTHONPATH", "")])

    def launch(script=TRAIN, **hyperparameters):
        asked = render(DataParallel(processes_per_host=2), "tensorflow")
        flags = [name for name in hyperparameters if name.startswith("sagemaker_")]
        sent = hyperparameters if flags else {KEY: asked, **hyperparameters}
        return [
            stage.train(
                stage.base(script, name=f"host{number}", host=host, hosts=HOSTS, **sent),
                SMDIST_MASTER_PORT=str(port),
                PYTHONPATH=path,
            )
            for number, host in enumerate(HOSTS, start=1)
        ]

    return launch


def seen(runs):
    """What the ranks that started wrote, by rank."""
    files = [path for run in runs for path in (run.base / "model").glob("*.json")]
    return {int(path.stem): json.loads(path.read_text()) for path in files}


def test_four_ranks_on_two_hosts(start, port):
    """Ranks, addresses, arguments and environment are torchrun's."""
    text = "a$$b ${local_rank} it's ü"
    runs = start(text=text)

    assert [0, 0] == [run.wait(60) for run in runs], runs[0].said()
    ranks = seen(runs)

    assert [0, 1, 2, 3] == sorted(ranks)
    for rank, facts in ranks.items():
        assert (str(rank % 2), "2") == (facts["LOCAL_RANK"], facts["LOCAL_WORLD_SIZE"])
        assert ("4", None) == (facts["WORLD_SIZE"], facts["tf"])
        assert (HOSTS[0], str(port)) == (facts["MASTER_ADDR"], facts["MASTER_PORT"])
        assert HOSTS[rank // 2] == facts["SM_CURRENT_HOST"] == facts["SMDIST_ADDRESS"]
        assert ["--text", text] == facts["argv"]
        assert str(runs[rank // 2].base / "code") == facts["cwd"]
    for number, run in enumerate(runs, start=1):
        assert run.failure() is None
        assert all(line.startswith(f"[algo-{number}") for line in run.said().splitlines())
    # these hosts have no secret: the first says so, in one line
    assert [1, 0] == [run.said().count("is not protected") for run in runs]


@pytest.mark.parametrize(
    ("chosen", "level", "lines"), [({}, "1", 0), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, "0", 4)]
)
def test_tensorflow_starts_quietly_unless_told(start, monkeypatch, chosen, level, lines):
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    runs = start(STARTING)

    assert [0, 0] == [run.wait(60) for run in runs], runs[0].said()
    said = "".join(run.said() for run in runs)
    assert 4 == said.count(f"level {level}")
    assert lines == said.count("oneDNN")
    assert 4 == said.count("W0000")


def test_the_first_failure_decides(start):
    """The other rank of the host ends with it; the other host is not the cause."""
    runs = start(boom="1", wait="1")

    assert 1 == runs[1].wait(30)
    assert runs[1].failure().startswith("algo-2 rank 2 exited with code 1: ValueError: boom (train")

    runs[0].process.terminate()

    assert 143 == runs[0].wait(20)


def test_killed_rank_and_stopped_host(start, until):
    """kill -9 of one rank ends its host in seconds and is its reason; SIGTERM ends the other."""
    runs = start(wait="1")
    until(lambda: len(seen(runs)) == 4, 60)
    os.kill(seen(runs)[3]["pid"], signal.SIGKILL)
    killed = time.monotonic()

    assert 137 == runs[1].wait(20)
    assert time.monotonic() - killed < 7.0
    assert runs[1].failure().startswith("algo-2 rank 3 was killed by SIGKILL: ")

    runs[0].process.terminate()
    stopped = time.monotonic()

    assert 143 == runs[0].wait(20)
    assert time.monotonic() - stopped < 7.0
    assert runs[0].failure() is None


def test_mirrored_workers_have_one_rank_per_host(start):
    runs = start(sagemaker_multi_worker_mirrored_strategy_enabled=True)

    assert [0, 0] == [run.wait(60) for run in runs], runs[0].said()
    tasks = [json.loads(facts["tf"])["task"] for _, facts in sorted(seen(runs).items())]

    assert [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}] == tasks


@pytest.fixture
def servers():
    """Connections of two servers, and a function that connects one and sends some bytes."""
    port = free_port("")
    callers = []

    def connect(first):
        callers.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        callers[-1].sendall(first if isinstance(first, bytes) else first.server_line())
        return callers[-1]

    connections = ServerConnections("127.0.0.1", port, 2, SECRET)
    yield connections, connect
    for each in (connections, *callers):
        each.close()


def served(connections, connect, name, secret=SECRET):
    """Connect as the server `name`, and return its socket after the whole greeting."""
    greeting = Greeting(secret, name)
    server = connect(greeting)
    assert "" == lost_within(connections, 0.3)
    answer = greeting.proof_line(server.recv(MAX_LINE))
    server.sendall(answer or b"smdist proof 00\n")
    return server


def lost_within(connections, seconds=2.0):
    """Return the name of a server whose connection was lost within this time, or ""."""
    deadline = time.monotonic() + seconds
    lost = ""
    while not lost and time.monotonic() < deadline:
        lost = connections.wait(0.05)
    return lost


def test_a_silent_host_is_lost_after_the_time_of_the_option():
    """The time is divided into a pause and probes, and the sum is the option's value."""
    for seconds in (5, 7, 11, 60, 899, 900):
        with socket.socket() as connection:
            watch_host(connection, seconds)
            idle, interval, probes, limit = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )

            assert seconds == idle + interval * probes
            assert probes >= 3
            assert 1000 * seconds == limit


@pytest.mark.parametrize("result", [ENDED, FAILED])
def test_servers_receive_the_result_of_the_script_also_late(servers, result):
    connections, connect = servers
    early = served(connections, connect, "algo-1 ps 0")

    assert "" == lost_within(connections, 0.3)
    connections.send_result(result)
    late = served(connections, connect, "algo-2 ps 1")
    connections.wait_for_late_servers(5.0)

    assert [result, result] == [early.recv(64), late.recv(64)]


def test_a_server_that_is_lost_is_named_and_a_stranger_is_not(servers):
    connections, connect = servers
    connect(b"GET / HTTP/1.0\r\n\r\n").close()
    server = served(connections, connect, "algo-2 worker 1")

    assert "" == lost_within(connections, 0.5)
    server.close()

    assert "algo-2 worker 1" == lost_within(connections)


@pytest.mark.parametrize("secret", [b"another", b""])
def test_who_lacks_the_secret_is_neither_lost_nor_served(servers, secret):
    """It has the greeting's form and any name; it learns no result, and its end ends no job."""
    connections, connect = servers
    stranger = served(connections, connect, "algo-2 ps 1", secret)

    assert "" == lost_within(connections, 0.3)
    connections.send_result(ENDED)
    connections.wait_for_late_servers(0.3)

    assert b"" == stranger.recv(64)


@pytest.mark.parametrize("data", [b"smdist server \n", b"x" * (MAX_LINE + 1), b"\xff\n\xff\n"])
def test_garbage_is_hung_up_on(servers, data):
    connections, connect = servers
    stranger = connect(data)

    assert "" == lost_within(connections, 0.3)
    with suppress(ConnectionResetError):
        assert b"" == stranger.recv(64)


def test_strangers_have_a_number_and_a_time(servers, monkeypatch):
    """The oldest of too many is hung up on, and each after some time; a server still connects."""
    connections, connect = servers
    monkeypatch.setattr(task_starter, "_MAX_UNPROVEN", 3)
    monkeypatch.setattr(task_starter, "_PROOF_SECONDS", 0.5)
    silent = []
    for _ in range(5):
        silent.append(connect(b""))
        connections.wait(0.2)

    assert 3 == len(connections._unproven())
    assert [b"", b""] == [each.recv(1) for each in silent[:2]]
    lost_within(connections, 0.8)
    assert [] == connections._unproven()
    server = served(connections, connect, "algo-1 ps 0")
    connections.send_result(ENDED)

    assert "" == lost_within(connections, 0.3)
    assert ENDED == server.recv(64)


@pytest.mark.parametrize(("secret", "works"), [(SECRET, True), (b"another", False)])
def test_a_server_refuses_a_starter_without_the_secret(secret, works):
    """Both must prove it: whoever took the starter's port could end the servers otherwise."""
    server, starter = Greeting(SECRET, "algo-2 ps 1"), Greeting(secret)
    proof = server.proof_line(starter.starter_line(server.server_line()))

    assert works == (proof is not None)
    assert not works or starter.is_proven(proof)
