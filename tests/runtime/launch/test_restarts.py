# SPDX-License-Identifier: Apache-2.0
"""Whole launchers restart their ranks together; who cannot be restarted is told why.

The ranks are processes without an engine, started as for TensorFlow: nothing
here depends on how ranks compute.
"""

import json
import signal

import pytest
from ports import free_port

from sagemaker_dist.contract import KEY, DataParallel, render

HOSTS = ["127.0.0.1", "127.0.0.2"]
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
attempt, rank = int(os.environ["SMDIST_RESTART_COUNT"]), int(os.environ["RANK"])
base = Path(os.environ["SAGEMAKER_BASE_DIR"])
shared = base.parent / "shared"
def meet(name, ranks=2):
    (shared / f"{name}-{rank}").touch()
    deadline = time.monotonic() + 60
    while len(list(shared.glob(f"{name}-*"))) < ranks:
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


@pytest.fixture
def hosts(stage, tmp_path):
    """Start a script on hosts with one rank each."""
    (tmp_path / "shared").mkdir()

    def start(script, *, num_hosts=2, max_restarts=3, **environ):
        options = render(
            DataParallel(processes_per_host=1, max_restarts=max_restarts), "tensorflow"
        )
        names = HOSTS[:num_hosts]
        variables = {
            "SMDIST_MASTER_PORT": str(free_port()),
            "SM_CHECKPOINT_DIR": str(tmp_path / "shared"),
            "SMDIST_SECRET": "a secret of sixteen",
            **environ,
        }
        found = []
        for name in names:
            more = {KEY: options}
            base = stage.base(SCRIPT + script, name=name, host=name, hosts=names, **more)
            found.append(stage.train(base, **variables))
        return found

    return start


def test_all_hosts_restart_after_one_rank_has_failed(hosts, tmp_path):
    """Each attempt has its number, torchelastic's variables and a secret of its own."""
    runs = hosts("""
names = ("SMDIST_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
secret = Path(os.environ["SMDIST_SECRET_FILE"]).read_text()
print("variables", *(os.environ[name] for name in names), secret[:10], flush=True)
meet(f"start-{attempt}")
if attempt == 0 and rank == 1:
    raise ValueError("boom")
if attempt == 1 and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt < 2:
    time.sleep(60)
""")

    assert [0, 0] == [run.wait(90) for run in runs]
    first, second = (run.said() for run in runs)
    for attempt in range(3):
        shown = [
            text.split(f"variables {attempt} {attempt} 3 ")[1][:10] for text in (first, second)
        ]
        assert shown[0] == shown[1]
    secrets = {line.split()[-1] for line in first.splitlines() if " variables " in line}
    assert 3 == len(secrets)
    lines = [line for line in first.splitlines() if "restart " in line and " begins" in line]
    assert 2 == len(lines)
    assert "algo-2 rank 1 exited with code 1: ValueError: boom" in lines[0]
    assert " begins" not in second
    restarts = json.loads((tmp_path / HOSTS[0] / "output/data/restarts.json").read_text())
    assert [(0, "algo-2", 1, 1), (1, "algo-1", 0, 137)] == [
        (each["attempt"], each["host"], each["rank"], each["exit_code"]) for each in restarts
    ]
    assert [None, None] == [run.failure() for run in runs]


def test_a_crash_loop_ends_early(hosts):
    """A script that fails at its start twice is not started again."""
    (run,) = hosts("import no_such_module", num_hosts=1, max_restarts=9)

    assert 1 == run.wait(60)
    assert 2 == run.said().count("[algo-1 rank 0] ModuleNotFoundError")
    assert "no_such_module" in run.failure()
    assert "no progress" in run.failure()
    fields = run.fields()
    assert ("loop", 2) == (fields["not_restarted"], len(fields["restarts"]))
    assert 0 == fields["culprit"]


def test_restarts_are_used_up(hosts):
    """Every host that fails names the rank where the last attempt failed."""
    runs = hosts(
        """
meet(f"start-{attempt}")
if rank == 1:
    sys.exit(7)
time.sleep(60)
""",
        max_restarts=1,
    )

    assert {7} == {runs[1].wait(60)}
    assert 0 != runs[0].wait(60)
    for run in runs:
        assert ("limit", 1) == (run.fields()["not_restarted"], run.fields()["rank"])
        assert "algo-2 rank 1 exited with code 7" in run.failure()
    assert [True, False] == [run.fields()["is_secondary"] for run in runs]


def test_a_rank_that_was_done_runs_again(hosts):
    """A rank may fail when the others have ended; it cannot go on alone."""
    runs = hosts("""
meet(f"start-{attempt}")
if rank == 1 and attempt == 0:
    (shared / "waits").touch()
    while not (shared / "go").exists():
        time.sleep(0.01)
    sys.exit(1)
print("done in attempt", attempt, flush=True)
if attempt == 0:
    (shared / "go").touch()
""")

    assert [0, 0] == [run.wait(60) for run in runs]
    assert "done in attempt 0" in runs[0].said()
    assert "done in attempt 1" in runs[0].said()


@pytest.mark.slow
def test_another_rank_killed_while_all_restart(hosts):
    """The second failure counts as one more, though not all ranks have begun."""
    runs = hosts("""
if attempt < 2 and rank != attempt:
    os.kill(os.getpid(), signal.SIGKILL)
meet(f"start-{attempt}")
print("done in attempt", attempt)
""")

    assert [0, 0] == [run.wait(60) for run in runs]
    assert all("done in attempt 2" in run.said() for run in runs)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_while_ranks_end_ends_the_job(hosts, until, tmp_path, number):
    """It comes when one rank has failed and another one still has time to end."""
    runs = hosts("""
signal.signal(signal.SIGTERM, lambda *_: (shared / "ending").touch())
meet(f"start-{attempt}")
if rank == 0:
    sys.exit(1)
while True:
    time.sleep(0.1)
""")
    until(lambda: (tmp_path / "shared/ending").exists(), 60)
    for run in runs:
        run.process.send_signal(number)

    assert 0 not in [run.wait(60) for run in runs]
    assert not list((tmp_path / "shared").glob("start-1-*"))
    assert " begins" not in runs[0].said()


def test_a_signal_lets_ranks_save_without_a_restart(hosts, until, tmp_path):
    """One launcher has the signal earlier than the other."""
    runs = hosts("""
def save(*_):
    time.sleep(0.5)
    (shared / f"saved-{rank}").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
meet(f"start-{attempt}")
(shared / f"ready-{rank}").touch()
while True:
    time.sleep(0.1)
""")
    until(lambda: 2 == len(list((tmp_path / "shared").glob("ready-*"))), 60)
    for run in reversed(runs):
        run.process.send_signal(signal.SIGTERM)

    assert [143, 143] == [run.wait(60) for run in runs]
    assert 2 == len(list((tmp_path / "shared").glob("saved-*")))
    assert [None, None] == [run.failure() for run in runs]


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_lost_launcher_ends_the_job(hosts, stage, until, tmp_path, lost):
    """As on SageMaker, which starts no host again."""
    runs = hosts("""
meet(f"start-{attempt}")
(shared / f"ready-{rank}").touch()
while True:
    time.sleep(0.1)
""")
    until(lambda: 2 == len(list((tmp_path / "shared").glob("ready-*"))), 60)
    runs[lost].process.kill()
    other = runs[1 - lost]

    assert 0 != other.wait(60)
    assert f"the launcher of algo-{lost + 1} was lost" in other.failure()
    assert "lost" == other.fields()["not_restarted"]
    runs[lost].wait()
    until(lambda: not stage.processes(), 60)  # its guards end its ranks
