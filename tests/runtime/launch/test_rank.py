# SPDX-License-Identifier: Apache-2.0
"""A guard names its rank's output, passes signals on once, and leaves nothing behind."""

import os
import signal
import socket
import sys

import pytest

GUARD = ("-m", "smdist.launch.rank_guard")
WORKER = """
import os, signal, sys, time
def note(name):
    def handler(number, frame):
        with open(name, "a") as file:
            file.write("x")
    return handler
pid = os.fork()
signal.signal(signal.SIGTERM, note(sys.argv[1] if pid else sys.argv[2]))
print("ready", flush=True)
time.sleep(0.2)
while pid and not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
time.sleep(0 if pid else 60)
"""


@pytest.fixture
def guard(stage, tmp_path):
    """Run a script under a guard that has no launcher."""

    def start(script, *arguments, **environ):
        path = tmp_path / "script.py"
        path.write_text(script, encoding="utf-8")
        name = {"SMDIST_HOST_LABEL": "algo-2", "RANK": "3", "PYTHONUNBUFFERED": "1"}
        return stage.run(
            tmp_path / "base", *GUARD, str(path), *map(str, arguments), **{**name, **environ}
        )

    return start


def test_output_is_named(guard):
    """Lines of both streams carry the rank; bytes that are no text pass."""
    run = guard(
        "import sys\nprint('one')\nsys.stderr.write('two\\n')\n"
        "sys.stdout.buffer.write(b'\\xff 10%\\r 20%\\rend')"
    )

    assert 0 == run.wait()
    shown = run.output.read_bytes()
    for line in (b"one\n", b"two\n", b"\xff 10%\r", b" 20%\r", b"end\n"):
        assert b"[algo-2 rank 3] " + line in shown


def test_arguments_arrive_unchanged(guard, tmp_path):
    arguments = ["it's", '"q"', "a\nb", "ü", "$HOME", ""]
    run = guard("import sys\nopen('seen', 'w', encoding='utf-8').write(repr(sys.argv[1:]))",
                *arguments, SMDIST_GUARD_DIRECTORY=str(tmp_path))  # fmt: skip

    assert 0 == run.wait()
    assert repr(arguments) == (tmp_path / "seen").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_guard_ends_as_its_rank(guard, script, status):
    assert status == guard(script).wait()


def test_signal_reaches_the_rank_once_and_its_workers_never(guard, tmp_path, until):
    """A second SIGTERM is not passed on; workers are killed when the rank is gone."""
    seen, worker, go = tmp_path / "seen", tmp_path / "worker", tmp_path / "go"
    run = guard(WORKER, seen, worker, go)
    until(lambda: run.said().count("ready") == 2)
    for _ in range(3):
        run.process.send_signal(signal.SIGTERM)
    until(seen.exists)
    run.process.send_signal(signal.SIGTERM)
    go.touch()

    assert 0 == run.wait()
    assert "x" == seen.read_text()
    assert not worker.exists()


def test_rank_that_ignores_a_signal_is_killed(guard, until):
    """Without a launcher the guard itself keeps the time."""
    run = guard(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)",
        SMDIST_STOP_SECONDS="0.5",
    )
    until(lambda: "ready" in run.said())
    run.process.terminate()

    assert -9 == run.wait(10)


def test_rank_dies_with_its_guard(guard, stage, until):
    """The kernel kills the rank of a guard that was killed."""
    run = guard("import time\nprint('ready')\ntime.sleep(60)")
    until(lambda: "ready" in run.said())
    run.process.kill()
    run.wait()
    until(lambda: not stage.processes(), 2)


def test_no_rank_starts_after_the_launcher_was_killed(guard, tmp_path):
    """Its guard removes the launcher's folder, which has the job's secret."""
    folder = tmp_path / "smdist-launch-x"
    folder.mkdir()
    (folder / "lock").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(folder / "guards.sock"))
    run = guard("print('ready')", SMDIST_GUARD_SOCKET=str(folder / "guards.sock"))

    assert 1 == run.wait()
    assert "ready" not in run.said()
    assert not folder.exists()


def test_daemon_that_holds_the_pipes_does_not_hold_the_guard(guard, stage, until):
    """A process that left the rank's group keeps its output open for a second at most."""
    run = guard(
        "import subprocess, sys\n"
        f"subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)\nprint('end', end='')"
    )

    assert 0 == run.wait(10)
    assert "[algo-2 rank 3] end\n" in run.said()
    for process in stage.processes():
        process.kill()
    until(lambda: not stage.processes())


def test_a_stopped_rank_is_named_in_its_output(guard, tmp_path, until):
    """SIGSTOP: the rank itself cannot say anything."""
    run = guard(
        "import os, time\nopen('pid.new', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.new', 'pid')\ntime.sleep(600)",
        SMDIST_GUARD_DIRECTORY=str(tmp_path),
    )
    until((tmp_path / "pid").exists)
    rank = int((tmp_path / "pid").read_text())
    os.kill(rank, signal.SIGSTOP)
    try:
        until(lambda: "kernel state T" in run.said(), 60)
    finally:
        os.kill(rank, signal.SIGKILL)

    assert "[algo-2 rank 3] smdist: this process has been stopped for 1" in run.said()
    assert -9 == run.wait()
