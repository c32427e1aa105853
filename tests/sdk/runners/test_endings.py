# SPDX-License-Identifier: Apache-2.0
"""Ends of jobs of processes: failures, stops, and the end of driver or supervisor."""

import json
import os
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from local_jobs import finish, log, run, wait_until

from sagemaker_dist.errors import SetupError
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.local import artifacts
from sagemaker_dist.runners.local import job_folder as folder_module
from sagemaker_dist.runners.local import local_runner as runner_module
from sagemaker_dist.runners.local.artifacts import Cancelled
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.job_state import State
from sagemaker_dist.runners.local.supervisor import Supervisor

pytestmark = pytest.mark.timeout(120)


def processes_of(folder):
    """Return all processes of a job folder: supervisor, launchers, and their descendants."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        try:
            around = {**process.environ(), "": " ".join(process.cmdline())}
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(
            str(folder) in around.get(name, "") for name in ("", "SAGEMAKER_BASE_DIR")
        ):
            found.append(process)
    return found


def members(path):
    with tarfile.open(path) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
            if member.isfile()
        }


def model_of(description):
    return Path(description["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("file://"))


def test_first_failure_is_told_and_ends_the_job_soon(runner, request_for, script):
    """A host that hangs is killed 6 s after another failed; FailureReason is the root cause."""
    script("""
        import signal, sys, time
        if host == "algo-1":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (base / "output" / "failure").write_text("rank 0: PeerError: rank 1 is gone")
            time.sleep(100)
        (base / "output" / "failure").write_text("algo-2 rank 1: ValueError: nope")
        sys.exit(3)
    """)
    began = time.monotonic()
    described = run(runner, request_for())

    assert "Failed" == described["TrainingJobStatus"]
    assert "algo-2 rank 1: ValueError: nope" == described["FailureReason"]
    assert "" == described["ModelArtifacts"]["S3ModelArtifacts"]  # none was saved
    assert time.monotonic() - began < 10


def test_the_cause_is_told_though_its_peer_ended_first(runner, request_for, script):
    """The failed rank is the root cause even if its peer exits earlier."""
    script("""
        import signal, sys, time
        if host == "algo-1":
            (base / "output" / "failure").write_text("rank 0: rank 1 on algo-2 raised X")
            (base / "output" / "failure.json").write_text('{"is_secondary": true}')
            sys.exit(1)
        fields = '{"host": "algo-2", "rank": 1, "kind": "raised", "other": 1}'
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as a launcher, without a word
        time.sleep(1.5)
        (base / "output" / "failure").write_text("algo-2 rank 1: X")
        (base / "output" / "failure.json").write_text(fields)
        sys.exit(1)
    """)
    ended = run(runner, request_for())

    assert "algo-2 rank 1: X" == ended["FailureReason"]
    expected = {"host": "algo-2", "exit_code": 1, "rank": 1, "kind": "raised"}
    assert expected == ended["RootCause"]


def test_a_peer_that_hangs_is_asked_to_end_all_the_same(runner, request_for, script):
    """If only a secondary failure is reported, the others get SIGTERM after 3 s."""
    script("""
        import signal, sys, time
        ready = base.parent / "ready"
        if host == "algo-1":
            while not ready.exists():
                time.sleep(0.01)
            (base / "output" / "failure").write_text("rank 0: PeerError: rank 1 is silent")
            sys.exit(1)
        def stop(*_):
            (base / "model" / "saved").write_text("saved")
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        ready.touch()
        time.sleep(100)
    """)
    described = run(runner, request_for())

    assert "rank 0: PeerError: rank 1 is silent" == described["FailureReason"]
    assert {"saved": "saved"} == members(model_of(described))


def test_failed_job_keeps_what_it_made(runner, request_for, script):
    script("""
        (base / "model" / "half").write_text("half")
        raise SystemExit(2)
    """)
    described = run(runner, request_for(hosts=1))

    assert {"half": "half"} == members(model_of(described))
    assert (
        "The launcher of algo-1 exited with code 2 and gave no reason."
        == described["FailureReason"]
    )
    assert {"host": "algo-1", "exit_code": 2} == described["RootCause"]


def test_grandchildren_do_not_survive(runner, request_for, script, tmp_path):
    """Processes in sessions of their own are killed at the end of the job, too."""
    script("""
        import subprocess
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 100 & sleep 100"])
    """)
    assert "Completed" == run(runner, request_for())["TrainingJobStatus"]
    wait_until(lambda: not processes_of(tmp_path / "jobs"))


def test_stop_gives_hosts_their_time(runner, request_for, script, tmp_path):
    """SIGTERM reaches every host, files saved after it are kept, and the job is Stopped."""
    script("""
        import signal, sys, time
        def stop(*_):
            (base / "model" / host).write_text("saved")
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        print("ready")
        time.sleep(100)
    """)
    name = runner.start(request_for())
    wait_until(lambda: log(runner).count("ready") == 2)
    runner.stop(name)
    described = finish(runner, name)

    assert "Stopped" == described["TrainingJobStatus"]
    assert "Stopped" == described["SecondaryStatus"]
    assert {"algo-1": "saved", "algo-2": "saved"} == members(model_of(described))
    wait_until(lambda: not processes_of(tmp_path / "jobs"))


def test_what_killed_hosts_wrote_is_kept(runner, request_for, script):
    """stop() and then stop(now=True) kills the hosts but keeps their model."""
    script("""
        import signal, time
        def stop(*_):
            (base / "model" / host).write_text("saved")
            print("wrote")
            time.sleep(100)
        signal.signal(signal.SIGTERM, stop)
        print("ready")
        time.sleep(100)
    """)
    name = runner.start(request_for())
    wait_until(lambda: log(runner).count("ready") == 2)
    runner.stop(name)
    wait_until(lambda: log(runner).count("wrote") == 2)
    runner.stop(name, now=True)
    described = finish(runner, name)

    assert "Stopped" == described["TrainingJobStatus"]
    assert {"algo-1": "saved", "algo-2": "saved"} == members(model_of(described))


def test_kill_does_not_wait(runner, request_for, script):
    """stop(now=True) kills a host that ignores SIGTERM at once."""
    script("""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready")
        time.sleep(100)
    """)
    name = runner.start(request_for())
    wait_until(lambda: log(runner).count("ready") == 2)
    runner.stop(name)
    time.sleep(0.3)
    assert "Stopping" == runner.describe(name)["TrainingJobStatus"]
    runner.stop(name, now=True)

    assert "Stopped" == finish(runner, name, seconds=3)["TrainingJobStatus"]


def test_job_stops_when_its_time_is_up(runner, request_for, script):
    script("import time; time.sleep(100)")
    described = run(runner, request_for(StoppingCondition={"MaxRuntimeInSeconds": 1}))

    assert "Stopped" == described["TrainingJobStatus"]
    assert "MaxRuntimeExceeded" == described["SecondaryStatus"]


DRIVER = """
    import sys
    from pathlib import Path
    from sagemaker_dist.runners import LocalRunner
    from sagemaker_dist.runners.viewer import watch
    import json
    runner = LocalRunner(root=Path(sys.argv[1]))
    name = runner.start(json.loads(sys.argv[2]), attended=sys.argv[3] == "attended")
    if sys.argv[3] == "attended":
        watch(runner, name)
"""
SLEEPER = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("ready")
    time.sleep(100)
"""


def test_killed_driver_takes_its_job_along(runner, request_for, script, driver, tmp_path):
    """An attended job ends when its driver is killed by SIGKILL; no process is left."""
    script(SLEEPER)
    process = driver(DRIVER, str(runner.root), json.dumps(request_for()), "attended")
    wait_until(lambda: runner.exists("job") and log(runner).count("ready") == 2)
    process.kill()

    assert "Stopped" == finish(runner, "job")["TrainingJobStatus"]
    wait_until(lambda: not processes_of(tmp_path / "jobs"))


def test_detached_job_outlives_its_driver(runner, request_for, script, driver):
    """A job that is not attended keeps running when its driver exits; any process can wait
    for it.
    """
    script("import time; print('ready'); time.sleep(1); print('done')")
    process = driver(DRIVER, str(runner.root), json.dumps(request_for()), "detached")

    assert 0 == process.wait(10)
    assert "InProgress" == runner.describe("job")["TrainingJobStatus"]
    assert "Completed" == finish(runner, "job")["TrainingJobStatus"]
    assert 2 == log(runner).count("done")


def test_killed_supervisor_is_noticed(runner, request_for, script, tmp_path):
    """If the supervisor is killed, its hosts end, and the job is Failed instead of InProgress."""
    script(SLEEPER)
    name = runner.start(request_for())
    wait_until(lambda: log(runner).count("ready") == 2)
    (supervisor,) = [
        each
        for each in processes_of(tmp_path / "jobs")
        if "supervisor" in str(each.cmdline()) and each.children()  # its watch has none
    ]
    supervisor.kill()
    described = finish(runner, name)

    assert "The supervisor of the job was killed." == described["FailureReason"]
    assert {"kind": "killed"} == described["RootCause"]
    assert not (tmp_path / "jobs" / name / "secret").exists()
    wait_until(lambda: not processes_of(tmp_path / "jobs"))


def test_unwritable_output_fails_the_job_and_keeps_the_trees(runner, request_for, script, tmp_path):
    script("(base / 'model' / 'weights').write_text('1')")
    (tmp_path / "file").touch()
    output = {"S3OutputPath": f"file://{tmp_path}/file"}
    described = run(runner, request_for(hosts=1, OutputDataConfig=output))

    assert "Failed" == described["TrainingJobStatus"]
    assert described["FailureReason"].startswith("The model could not be written: ")
    assert "1" == (tmp_path / "jobs/job/hosts/algo-1/model/weights").read_text()


def test_interrupted_start_leaves_no_supervisor(runner, request_for, script, tmp_path, monkeypatch):
    """Ctrl-C during start() stops a supervisor that already runs."""
    script(SLEEPER)
    real = runner_module.subprocess.run

    def interrupted(*args, **kwargs):
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.start(request_for())

    assert finish(runner, "job")["TrainingJobStatus"] in {"Stopped", "Failed"}
    wait_until(lambda: not processes_of(tmp_path / "jobs"))


def test_a_job_that_never_got_a_supervisor_has_failed(runner, request_for, monkeypatch):
    """A driver that is killed before it starts the supervisor leaves a Failed job."""
    monkeypatch.setattr(type(runner), "_launch", lambda *_: None)
    name = runner.start(request_for())
    assert "InProgress" == runner.describe(name)["TrainingJobStatus"]
    monkeypatch.setattr(folder_module, "_LOCK_SECONDS", 0.0)

    assert "Failed" == runner.describe(name)["TrainingJobStatus"]


def test_failed_job_keeps_the_code_that_its_traceback_names(runner, request_for, tmp_path, script):
    script("raise SystemExit(2)")
    source = {"Folder": str(tmp_path / "src"), "Only": None, "Dependencies": []}
    run(runner, request_for(hosts=1, LocalSource=source))
    tree = tmp_path / "jobs/job/hosts/algo-1"

    assert ["code"] == [path.name for path in tree.iterdir()]
    assert (tree / "code" / "train.py").exists()


def test_log_that_cannot_be_written_ends_no_training(runner, request_for, script):
    script("""
        import shutil
        shutil.rmtree(base.parents[1] / "logs")
        print("lost")
        (base / "model" / "weights").write_text("1")
    """)

    assert {"weights": "1"} == members(model_of(run(runner, request_for(hosts=1))))


def test_cause_is_told_besides_a_model_that_cannot_be_written(
    runner, request_for, script, tmp_path
):
    script("raise SystemExit(2)")
    (tmp_path / "file").touch()
    output = {"S3OutputPath": f"file://{tmp_path}/file"}
    reason = run(runner, request_for(hosts=1, OutputDataConfig=output))["FailureReason"]

    assert reason.startswith("The launcher of algo-1 exited with code 2 and gave no reason.")
    assert "The model could not be written: " in reason


def test_empty_model_is_said(runner, request_for):
    run(runner, request_for(hosts=1))

    assert "[sagemaker-dist] no model was saved" in log(runner)


def test_stop_while_a_model_is_packed_leaves_no_half(tmp_path):
    """A stop during the writing of the model leaves no partial archive."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("a")

    def stopped():
        raise artifacts.Cancelled

    merged = artifacts.merge([tmp_path], "tree")
    with pytest.raises(artifacts.Cancelled):
        artifacts._pack(merged, tmp_path / "model.tar.gz", stopped)
    assert ["tree"] == [
        path.name
        for path in tmp_path.iterdir()
        if path.name in {"tree", "model.tar.gz", "model.tar.gz.part"}
    ]


def test_relative_root_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "jobs" == LocalRunner(root=Path("jobs")).root


def test_root_that_cannot_be_written_is_named(request_for, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(SetupError) as caught:
        LocalRunner(root=tmp_path / "file" / "jobs").start(request_for())

    assert ("root",) == caught.value.about


@pytest.mark.parametrize(
    ("error", "status"),
    [(Cancelled(), "Stopped"), (SetupError("a", "b", "c"), "Failed"), (OSError(), "Failed")],
)
def test_a_job_that_cannot_start_leaves_nothing(tmp_path, error, status):
    """Pipes, copied data, containers and networks are removed."""
    removed = []

    def fetch(*_):
        raise error

    data = SimpleNamespace(is_fetched=True, fetch=fetch, remove=lambda: removed.append("data"))
    fleet = SimpleNamespace(remove=lambda: removed.append("fleet"))
    with suppress(OSError):
        Supervisor(JobFolder(tmp_path), None, data, fleet, None, State()).run()

    assert ["fleet", "data"] == removed
    assert status == JobFolder(tmp_path).state().status
