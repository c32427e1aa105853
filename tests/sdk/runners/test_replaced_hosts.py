# SPDX-License-Identifier: Apache-2.0
"""A host that was killed is started again, if the job has restarts; the others keep running."""

import json

import psutil
import pytest
from local_jobs import log, run, wait_until

from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.runners import TERMINAL

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    shared = Path(os.environ["SM_CHECKPOINT_DIR"])
    starts = len(list(shared.glob(f"{host}-*")))
    secret = base / "input/config/sagemaker_dist_secret"
    (shared / f"{host}-{starts}").write_text(secret.read_text())
    secret.unlink()  # as the launcher does
    assert not (base / "output/failure").exists()
    assert "1" == os.environ["SMDIST_REPLACES_HOSTS"]
    def wait_for(name):
        while not (shared / name).exists():
            time.sleep(0.01)
"""


@pytest.fixture
def request_with(request_for):
    """Return a function that builds the request of a job with some restarts."""

    def build(max_restarts, **more):
        request = request_for(**more)
        request["HyperParameters"][KEY] = render(DataParallel(max_restarts=max_restarts))
        return request

    return build


def test_a_host_that_was_killed_starts_again(runner, request_with, script):
    """Its other processes have ended before; its secret is there again, and the job succeeds."""
    script(f"""{SCRIPT}
    if host == "algo-2" and starts == 0:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        (shared / "child").write_text(str(child.pid))
        restarts = '[{{"attempt": 0, "text": "lost", "kind": "host", "other": 1}}, 3]'
        (base.parent / "algo-1/output/data/restarts.json").write_text(restarts)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("algo-2-1")
    """)
    described = run(runner, request_with(1))
    folder = runner.root / "job" / "checkpoints"

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert [{"attempt": 0, "text": "lost", "kind": "host"}] == described["Restarts"]
    secrets = {path.read_text() for path in folder.glob("algo-*")}
    assert (3, 1) == (len(list(folder.glob("algo-*"))), len(secrets))
    assert not psutil.pid_exists(int((folder / "child").read_text()))
    assert "The launcher of algo-2 was killed by SIGKILL" in log(runner)
    assert "algo-2 is started again" in log(runner)


@pytest.mark.parametrize(
    ("max_restarts", "ending", "starts"),
    [
        (1, "os.kill(os.getpid(), signal.SIGKILL)", 2),  # as often as max_restarts says
        (3, "(base / 'output/failure').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)", 1),
        (3, "sys.exit(1)", 1),  # the launchers have agreed on the end of the job
    ],
)
def test_other_ends_end_the_job(runner, request_with, script, max_restarts, ending, starts):
    script(f"{SCRIPT}\n    {ending}\n")
    described = run(runner, request_with(max_restarts, hosts=1))
    folder = runner.root / "job" / "checkpoints"

    assert "Failed" == described["TrainingJobStatus"]
    assert starts == len(list(folder.glob("algo-1-*"))), log(runner)


def test_a_stop_ends_the_job_whoever_is_killed(runner, request_with, script):
    """Ctrl-C in the notebook, and the host then dies before it has saved."""
    script(f"""{SCRIPT}
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    (shared / "runs").touch()
    time.sleep(100)
    """)
    name = runner.start(request_with(3, hosts=1))
    folder = runner.root / name / "checkpoints"
    wait_until(lambda: (folder / "runs").exists(), 30)
    runner.stop(name)

    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL, 30)

    assert "Stopped" == runner.describe(name)["TrainingJobStatus"]
    assert 1 == len(list(folder.glob("algo-1-*")))


def test_a_job_without_restarts_ends(runner, request_for, script):
    script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    described = run(runner, request_for(hosts=1))

    assert "Failed" == described["TrainingJobStatus"]
    assert "Restarts" not in json.loads(json.dumps(described, default=str))
