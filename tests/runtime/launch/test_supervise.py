# SPDX-License-Identifier: Apache-2.0
"""One failure ends the host's ranks in time, a signal reaches them at once, nothing stays.

The ranks are started by a stand-in for torchrun that hangs: it ignores signals
and waits for every rank. What holds with it holds with torchrun.
"""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from smdist.launch.supervise import Order

STARTER = """
import os, signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
guard = [sys.executable, "-m", "smdist.launch.rank_guard", sys.argv[1]]
guards = [
    subprocess.Popen(guard, env={**os.environ, "RANK": str(rank)}, start_new_session=True)
    for rank in (2, 3)
]
sys.exit(int(any([guard.wait() for guard in guards])))
"""
DRIVER = """
import os, sys
from pathlib import Path
from smdist.launch.start_line import line_printer
from smdist.launch.attempt_loop import run_once
from smdist.launch.supervise import Order
starter, script, folder, stop, failure = sys.argv[1:]
order = Order(
    command=(sys.executable, starter, script),
    environ={**os.environ, "SMDIST_HOST_LABEL": "algo-2", "PYTHONUNBUFFERED": "1"},
    directory=Path(folder), label="algo-2",
    stop_seconds=float(stop), failure_seconds=float(failure),
)
outcome = run_once(order, line_printer("algo-2"))
print("outcome:", outcome.failure, flush=True)
sys.exit(outcome.status)
"""
RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    time.sleep(60)
def ready():
    # closed within `with`: an error that a signal's handler raises in a destructor is lost
    with open(f"ready-{rank}", "w") as file:
        file.write(str(os.getpid()))
def wait_for(*ranks):
    while not all(os.path.exists(f"ready-{other}") for other in ranks):
        time.sleep(0.01)
"""


@pytest.fixture
def supervise(stage, tmp_path, monkeypatch):
    """Run a script as ranks 2 and 3 of host algo-2."""

    def start(script, *, stop_seconds=20, failure_seconds=5.0, starter=STARTER, driver=DRIVER):
        folder = tmp_path / "run"
        folder.mkdir()
        files = {"starter.py": starter, "driver.py": driver, "script.py": RANK + script}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        paths = [str(tmp_path / name) for name in ("driver.py", "starter.py", "script.py")]
        return stage.run(
            tmp_path / "base",
            *paths,
            str(folder),
            str(stop_seconds),
            str(failure_seconds),
            SMDIST_GUARD_DIRECTORY=str(tmp_path),
        )

    return start


@pytest.fixture
def both_ready(tmp_path, until):
    """Wait for both ranks; their process numbers."""

    def wait():
        files = [tmp_path / "ready-2", tmp_path / "ready-3"]
        until(lambda: all(file.exists() and file.read_text() for file in files))
        return [int(file.read_text()) for file in files]

    return wait


def test_ranks_have_five_seconds_after_a_failure():
    order = Order(command=(), environ={}, directory=Path(), label="", stop_seconds=110)

    assert 5.0 == order.failure_seconds


def test_all_well(supervise):
    """A rank that ends early is no failure."""
    run = supervise("if rank == 3: time.sleep(1)\nprint('done', rank)")

    assert 0 == run.wait()
    assert "[algo-2 rank 2] done 2\n" in run.said()
    assert "[algo-2 rank 3] done 3\n" in run.said()
    assert run.said().endswith("outcome: \n")


def test_process_that_is_no_guard_is_disconnected(supervise, tmp_path):
    """A rank can reach the launcher's socket, and ends nothing with what it says there."""
    run = supervise(
        f"""
import socket
stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.chdir({str(tmp_path / "run")!r})
stranger.connect("guards.sock")
stranger.send(b'[]')
assert b"" == stranger.recv(1)
"""
    )

    assert 0 == run.wait()
    assert run.said().endswith("outcome: \n")


def test_failure_ends_ranks_that_ignore_signals(supervise):
    """The other rank is killed after its grace though torchrun's stand-in hangs."""
    script = "if rank == 2: stubborn()\nwait_for(2)\nraise ValueError('boom')"
    run = supervise(script, failure_seconds=1.0)

    assert 1 == run.wait()
    assert "outcome: algo-2 rank 3 exited with code 1: ValueError: boom (script.py:" in run.said()
    ended = time.time() - (run.base.parent / "ready-2").stat().st_mtime

    assert 1.0 <= ended < 4.0


def test_failure_ends_ranks_that_listen_at_once(supervise):
    """The supervisor does not wait for a time limit when all ranks have ended."""
    script = "if rank == 2: ready(); time.sleep(60)\nwait_for(2)\nsys.exit(7)"
    run = supervise(script, failure_seconds=30.0)

    assert 7 == run.wait(10)
    assert "outcome: algo-2 rank 3 exited with code 7\n" in run.said()


def test_lost_peer_is_not_the_cause(supervise):
    """The rank that tells of a lost peer may end before the one that failed."""
    script = """
class PeerError(Exception): pass
def fail(*_): raise ValueError("boom")
if rank == 2:
    wait_for(3)
    raise PeerError("rank 3 left")
signal.signal(signal.SIGTERM, fail)
ready()
time.sleep(60)
"""
    run = supervise(script)

    assert 1 == run.wait(10)
    assert "outcome: algo-2 rank 3 exited with code 1: ValueError: boom" in run.said()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_reaches_every_rank_at_once(supervise, both_ready, number, status):
    """Ranks save and end; the supervisor ends as stopped, without a failure."""
    script = f"""
def save(*_):
    print("signal at", time.time())
    sys.exit(0)
signal.signal({int(number)}, save)
ready()
time.sleep(60)
"""
    run = supervise(script)
    both_ready()
    sent = time.time()
    run.process.send_signal(number)

    assert status == run.wait(10)
    heard = [float(line.split()[-1]) for line in run.said().splitlines() if "signal at" in line]

    assert 2 == len(heard)
    assert max(heard) - sent < 3.0
    assert run.said().endswith("outcome: \n")


def test_ranks_that_ignore_the_signal_are_killed(supervise, both_ready):
    run = supervise("stubborn()", stop_seconds=1)
    both_ready()
    sent = time.monotonic()
    run.process.terminate()

    assert 143 == run.wait(10)
    assert 1.0 <= time.monotonic() - sent < 3.0


def test_killed_rank_is_named(supervise, both_ready):
    """kill -9 of a rank ends the host at once, with a hint."""
    run = supervise("ready(); time.sleep(60)")
    os.kill(both_ready()[1], signal.SIGKILL)
    killed = time.monotonic()

    assert 137 == run.wait(10)
    assert time.monotonic() - killed < 4.0
    assert "outcome: algo-2 rank 3 was killed by SIGKILL: the host may have run out" in run.said()


def test_killed_guard_takes_its_rank_along(supervise, both_ready, stage):
    run = supervise("ready(); time.sleep(60)")
    both_ready()
    guards = [
        process
        for process in stage.processes()
        if "smdist.launch.rank_guard" in process.cmdline() and process.environ()["RANK"] == "2"
    ]
    guards[0].kill()

    assert 137 == run.wait(10)
    assert "outcome: algo-2 rank 2 was killed by SIGKILL" in run.said()


def test_killed_starter_ends_the_host(supervise, both_ready, stage):
    """Without torchrun the ranks are stopped, and the supervisor reports it."""
    run = supervise("ready(); time.sleep(60)")
    both_ready()
    starter = next(p for p in stage.processes() if str(p.cmdline()[1]).endswith("starter.py"))
    starter.kill()

    assert 0 != run.wait(10)
    assert "outcome: algo-2 " in run.said()


def test_killed_launcher_takes_everything_along(supervise, both_ready, stage, until):
    """kill -9 of the launcher reaches the ranks as SIGTERM."""
    listening = STARTER.replace("lambda *_: None", "signal.SIG_DFL")
    run = supervise("ready(); time.sleep(60)", starter=listening)
    both_ready()
    run.process.kill()

    assert -9 == run.wait()
    until(lambda: not stage.processes(), 5)


def test_starter_that_fails_alone_is_quoted(supervise):
    """torchrun's own error shows only when no rank failed."""
    run = supervise("", starter="print('noise')\nraise RuntimeError('port 7777 is taken')")

    assert 1 == run.wait()
    assert "outcome: algo-2 could not start its ranks: torchrun ended with code 1:" in run.said()
    assert "RuntimeError: port 7777 is taken" in run.said().splitlines()[-1]


REPORTING = """
import os, sys, time
from pathlib import Path
from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.starter_report import StarterReport, write_error, write_report
write_report(Path(), StarterReport(missing=("algo-3", "algo-4")))
while not os.path.exists("../has-waited"):
    time.sleep(0.02)
write_error(Path(), LaunchError("algo-3 has not joined", "why", "Hint", kind="timeout", culprit=4))
raise RuntimeError("noise")
"""


def test_hosts_that_a_starter_waits_for_are_named_and_its_error_is_the_hosts(
    supervise, tmp_path, until
):
    """torchrun prints neither where anybody sees it."""
    driver = DRIVER.replace("outcome.failure,", "outcome.failure, dict(outcome.fields),")
    driver = driver.replace(
        "starter, script, f", "supervise._PROGRESS_SECONDS = 0.2\nstarter, script, f"
    )
    run = supervise("", starter=REPORTING, driver=f"from smdist.launch import supervise\n{driver}")
    until(lambda: "; it waits for algo-3, algo-4, not joined yet\n" in run.said())
    (tmp_path / "has-waited").touch()

    assert 1 == run.wait()
    last = run.said().splitlines()[-1]
    assert "outcome: algo-2 could not start its ranks: algo-3 has not joined: why." in last
    fields = {"host": "algo-2", "exit_code": 1, "kind": "timeout", "culprit": 4}
    assert all(f"{name!r}: {value!r}" in last for name, value in fields.items())
    assert "noise" not in run.said()


def test_daemons_are_gone(supervise):
    """A process that left its group and its parent is found and killed: the stage checks."""
    script = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
"""
    assert 0 == supervise(script).wait()


def test_a_stopped_guard_and_a_stopped_starter_are_named_by_the_launcher(
    supervise, both_ready, until
):
    """Nothing else would say why the rank's output does not come."""
    run = supervise("ready()\ntime.sleep(60)")
    _, rank = both_ready()
    guard = psutil.Process(rank).parent()
    stopped = [guard, guard.parent()]
    for each in stopped:
        each.suspend()
    try:
        until(lambda: run.said().count("kernel state T") == 2, 60)
    finally:
        for each in stopped:
            each.resume()
        run.process.terminate()
    run.wait()

    assert "the guard of rank 3 has been stopped for 1" in run.said()
    assert "torchrun, which starts the ranks, has been stopped for 1" in run.said()


SOON = """
import sys
from smdist.launch import kernel_state, rank_guard
kernel_state.CHECK_SECONDS = kernel_state.FIRST_SECONDS = 0.3
rank_guard.main()
"""


def test_a_stopped_launcher_is_named_by_the_guard_of_its_first_rank(supervise, both_ready, until):
    """The other guards of the host, and all other hosts, say nothing."""
    guards = STARTER.replace('"-m", "smdist.launch.rank_guard"', f'"-c", {SOON!r}')
    guards = guards.replace('"RANK": str(rank)', '"RANK": str(rank), "LOCAL_RANK": str(rank - 2)')
    run = supervise("ready()\ntime.sleep(60)", starter=guards)
    both_ready()
    os.kill(run.process.pid, signal.SIGSTOP)
    try:
        until(lambda: "kernel state T" in run.said(), 60)
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
        run.process.terminate()
    run.wait()
    (line,) = [line for line in run.said().splitlines() if "kernel state T" in line]

    assert line.startswith("[algo-2 rank 2] smdist: the launcher of this host has been stopped for")
    assert f"kill -CONT {run.process.pid}" in line
