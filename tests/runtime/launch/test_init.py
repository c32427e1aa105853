# SPDX-License-Identifier: Apache-2.0
"""`smdist-init` passes a stop to all that needs it, leaves nothing and ends as its command did."""

import os
import signal
import subprocess
import sys
import time

import pytest

from smdist.launch.process_tree import below, signal_targets

INIT = (sys.executable, "-m", "smdist.launch.init_process")

HANDLER = """
import os, signal, sys, time
def stop(number, _):
    print(sys.argv[1], "heard", number, flush=True)
    time.sleep(float(sys.argv[2]))
    print(sys.argv[1], "ends", flush=True)
    os._exit(5)
signal.signal(signal.SIGTERM, stop)
print(sys.argv[1], "ready", flush=True)
time.sleep(60)
"""
DRIVER = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
"""
READER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
for line in child.stdout:
    print("read:", line.decode().strip(), flush=True)
sys.exit(child.wait())
"""
PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], "child", "0"])
def stop(*_):
    time.sleep(0.5)
    print("parent saved, child still there:", child.poll() is None, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("parent ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def init(stage, tmp_path):
    """Run a command below smdist-init; files by name are in its directory."""
    scripts = {"handler": HANDLER, "driver": DRIVER, "parent": PARENT, "reader": READER}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)

    def start(*command, **environ):
        return stage.run(tmp_path / "base", "-m", "smdist.launch.init_process", *command, **environ)

    return start


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["sh", "-c", "exit 7"], 7, ""),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["sh", "-c", "kill -PIPE $$"], 141, ""),
        (["true"], 0, ""),
        (["no-such-command"], 127, "'no-such-command' cannot be run: the image has no such"),
        (["/"], 126, "'/' cannot be run: Permission denied"),
    ],
)
def test_status_is_the_commands_own(command, status, text):
    """A shell's: 128 + n after signal n, 127 and 126 for what cannot run."""
    done = subprocess.run([*INIT, *command], capture_output=True, text=True, timeout=30)

    assert status == done.returncode
    assert text in done.stderr


def test_train_misses_no_signal_while_it_starts(tmp_path):
    """Those that come before it has its handlers wait for them."""
    train = tmp_path / "train"
    train.write_text(f"#!{sys.executable}\nimport signal\nprint(*signal.pthread_sigmask(0, []))\n")
    train.chmod(0o755)
    done = subprocess.run(
        [*INIT, "train"],
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert {"2", "15"} == set(done.stdout.split())


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_train_takes_its_place(tmp_path, arguments):
    """`train` is an init itself: it keeps the process, its number and its status."""
    train = tmp_path / "train"
    train.write_text("#!/bin/sh\necho $$ $*\nexit 3\n")
    train.chmod(0o755)
    process = subprocess.Popen(
        [*INIT, *arguments],
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate(timeout=30)

    assert 3 == process.returncode
    assert str(process.pid) == said.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_what_a_shell_started(init, tmp_path, until, number):
    """Below a shell and a driver without handlers; the shell's status is the status."""
    script = (tmp_path / "handler.py").read_text().replace("SIGTERM", number.name)
    (tmp_path / "handler.py").write_text(script)
    python = f"exec {sys.executable}" if number == signal.SIGINT else sys.executable
    driver = "" if number == signal.SIGINT else f"{tmp_path}/driver.py"
    run = init("bash", "-c", f"true && {python} {driver} {tmp_path}/handler.py script 0.3; exit $?")
    until(lambda: "script ready" in run.said())
    start = time.monotonic()
    run.process.send_signal(number)
    status = run.wait(10)

    assert (5 if number == signal.SIGINT else 143) == status
    assert f"script heard {number.value}" in run.said()
    assert "script ends" in run.said(), "the script has its time, though the shell had ended"
    assert 1 == run.said().count("heard")
    assert time.monotonic() - start < 3.0


def test_who_handles_the_signal_decides_for_its_children(init, tmp_path, until):
    """A script saves with its data loaders alive; they receive the signal when it has ended."""
    run = init("bash", "-c", f"{sys.executable} {tmp_path}/parent.py {tmp_path}/handler.py; exit 9")
    until(lambda: "parent ready" in run.said() and "child ready" in run.said())
    run.process.terminate()

    assert 143 == run.wait(10)
    said = run.said()

    assert "parent saved, child still there: True" in said
    assert said.index("parent saved") < said.index("child heard 15")


def test_who_reads_a_scripts_output_outlives_it(init, tmp_path, until):
    """The driver of SageMaker's SDK v3 does; a script that prints while it saves needs it."""
    command = f"{sys.executable} {tmp_path}/reader.py {tmp_path}/handler.py script 0.3; exit 9"
    run = init("bash", "-c", command)
    until(lambda: "script ready" in run.said())
    run.process.terminate()

    assert 143 == run.wait(10)
    assert "read: script heard 15" in run.said()
    assert "read: script ends" in run.said()


def test_a_shell_that_traps_does_not_hide_its_command(init, tmp_path, until):
    """A shell runs its trap after the command, which therefore must receive the signal."""
    command = f"trap 'echo trapped; exit 4' TERM; {sys.executable} {tmp_path}/handler.py script 0"
    run = init("bash", "-c", f"{command}; echo after")
    until(lambda: "script ready" in run.said())
    run.process.terminate()

    assert 4 == run.wait(10)
    assert "script heard 15" in run.said()
    assert "trapped" in run.said()


def test_parents_receive_a_signal_before_their_children(until):
    """A shell has it before its command ends; else it would go on with the next command."""
    shell = subprocess.Popen(["bash", "-c", "sleep 60; true"], start_new_session=True)
    try:
        until(lambda: below(os.getpid()).get(shell.pid))
        (command,) = below(os.getpid())[shell.pid]
        targets = [
            each
            for each in signal_targets(os.getpid(), signal.SIGTERM)
            if each in (shell.pid, command)
        ]
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()

    assert [shell.pid, command] == targets


def test_stubborn_processes_are_killed(init, until):
    """stop_seconds after the signal, with everything they started."""
    script = "trap '' TERM; (trap '' TERM; sleep 60) & echo ready; sleep 60"
    run = init("sh", "-c", script, SMDIST_STOP_SECONDS="0.5")
    until(lambda: "ready" in run.said())
    start = time.monotonic()
    run.process.terminate()

    assert 137 == run.wait(10)
    assert 0.5 <= time.monotonic() - start < 3.0


def test_nothing_outlives_the_command(init):
    """A daemon that it left ends with it, and orphans are reaped meanwhile."""
    run = init("sh", "-c", "setsid sleep 60 & (setsid sh -c 'sleep 0.1' &); sleep 0.4; exit 6")

    assert 6 == run.wait(10)


def test_a_bad_stop_time_is_reported(init):
    run = init("sh", "-c", "sleep 0.5; exit 2", SMDIST_STOP_SECONDS="soon")

    assert 2 == run.wait(10)
    assert "SMDIST_STOP_SECONDS is 'soon'" in run.said()


def test_command_starts_at_once():
    """Process 1 costs little more processor time than Python's own start."""

    def seconds(*command):
        before = os.times()
        subprocess.run(command, check=True, timeout=60)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    bare = min(seconds(sys.executable, "-c", "pass") for _ in range(5))

    assert any(seconds(*INIT, "true") - bare < 0.2 for _ in range(60))
