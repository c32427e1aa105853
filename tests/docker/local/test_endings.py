# SPDX-License-Identifier: Apache-2.0
"""How jobs in containers end: killed, stopped, interrupted, with hosts that end early."""

import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

import pytest
import torch
from engine_proxy import EngineProxy
from jobs import DIGITS, ROOT, wait_until

from sagemaker_dist import DataParallel, JobError, LocalSession, PyTorch
from sagemaker_dist.packaging.docker_engine import address
from sagemaker_dist.runners.local.containers.container_arguments import FOLDER_LABEL, HOST_LABEL

pytestmark = pytest.mark.timeout(300, func_only=True)

SLEEP = "import time; print('asleep', flush=True); time.sleep(600)"


def hosts_of(engine):
    """The running containers of all jobs, by the names of their hosts."""
    found = engine.containers.list(filters={"label": FOLDER_LABEL})
    return {container.labels[HOST_LABEL]: container for container in found}


def log_of(estimator):
    name = estimator.latest_training_job.name
    return "".join(estimator.sagemaker_session.runner.logs(name))


def running(estimator, engine, count=2):
    """Start the job and wait until the script runs on every host."""
    estimator.fit(wait=False)
    wait_until(lambda: log_of(estimator).count("asleep") == count)
    return hosts_of(engine)


def test_docker_kill_of_a_host_fails_the_job_with_its_name(job, engine):
    """At once, though its neighbour in the world waits for it."""
    estimator = job(
        """
        import smdist.dataparallel.torch
        import time
        import torch
        import torch.distributed as dist
        dist.init_process_group("smdist")
        print("asleep", flush=True)
        for _ in range(6000):
            dist.all_reduce(torch.ones(1000))
            time.sleep(0.1)
        """,
        instance_count=2,
        distribution=DataParallel(processes_per_host=1),
    )
    running(estimator, engine)["algo-2"].kill()
    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        estimator.latest_training_job.wait()

    assert 60 > time.monotonic() - began
    assert {"host": "algo-2", "exit_code": 137} == caught.value.cause


def test_a_stop_is_heard_while_hosts_start(job, engine):
    """Process 1 of a container drops signals that it has no handler for: none comes too early."""
    estimator = job(SLEEP, instance_count=2)
    estimator.fit(wait=False)
    wait_until(lambda: hosts_of(engine))
    began = time.monotonic()
    estimator.latest_training_job.stop()
    estimator.latest_training_job.wait()

    assert 60 > time.monotonic() - began
    assert "Stopped" == estimator.latest_training_job.describe()["TrainingJobStatus"]


def test_a_failed_script_is_the_reason(job):
    """FailureReason has the host and the exception, not the container's status."""
    estimator = job("raise ValueError('no such column: price')", instance_count=2)
    with pytest.raises(JobError):
        estimator.fit()

    reason = estimator.latest_training_job.describe()["FailureReason"]
    assert "ValueError: no such column: price" in reason
    assert "algo-" in reason


def test_stopped_ranks_save_and_the_next_job_resumes(job, image, tmp_path):
    """stop(): SIGTERM reaches the ranks in their containers, one checkpoint, then on from there."""
    sys.path.insert(0, str(DIGITS))
    from data import write_digits

    sys.path.remove(str(DIGITS))
    channel = write_digits(tmp_path / "data").as_uri()
    checkpoints = tmp_path / "checkpoints"

    def digits(epochs):
        return PyTorch(
            entry_point="train.py",
            source_dir=str(DIGITS / "source"),
            instance_type="local",
            instance_count=2,
            distribution=DataParallel(processes_per_host=1),
            hyperparameters={"epochs": epochs},
            checkpoint_s3_uri=checkpoints.as_uri(),
        )

    first = digits(100_000)
    first.fit({"training": channel}, wait=False)
    wait_until((checkpoints / "checkpoint.pt").exists)
    first.latest_training_job.stop()
    wait_until(lambda: first.latest_training_job.describe()["TrainingJobStatus"] == "Stopped")
    saved = torch.load(checkpoints / "checkpoint.pt")
    second = digits(saved["step"] // 22 + 1)  # steps of an epoch
    second.fit({"training": channel})

    assert 2 == log_of(first).count("stopped with status 143")
    assert f"resuming after step {saved['step']}" in log_of(second)


def test_a_rank_0_that_ends_early_does_not_end_hosts_that_still_save(job):
    """algo-1 is done long before algo-2 has written its model; the job waits for both."""
    estimator = job(
        """
        import os, time
        from pathlib import Path
        import smdist.dataparallel.torch
        import torch.distributed as dist
        dist.init_process_group("smdist")
        rank = dist.get_rank()
        dist.destroy_process_group()
        if rank:
            time.sleep(8)
        Path(os.environ["SM_MODEL_DIR"], f"rank-{rank}").write_text("saved")
        """,
        instance_count=2,
        distribution=DataParallel(processes_per_host=1),
    )
    estimator.fit()

    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        assert ["rank-0", "rank-1"] == sorted(archive.getnames())


def test_a_host_that_ends_at_once_is_still_known_to_its_neighbours(job):
    """Without a world hosts end when they like: names resolve as long as the job runs."""
    estimator = job(
        """
        import os, socket, time
        if os.environ["SM_CURRENT_HOST"] == "algo-2":
            time.sleep(3)
            print("algo-1 is", socket.gethostbyname("algo-1"))
        """,
        instance_count=2,
    )
    estimator.fit()

    assert "algo-1 is 1" in log_of(estimator)


DRIVER = """
    import sys
    from sagemaker_dist import PyTorch
    PyTorch(
        entry_point="train.py", source_dir=sys.argv[1], instance_type="local", instance_count=2
    ).fit(job_name="driven")
"""


@pytest.fixture
def driver(source, image, tmp_path):
    """A driver of its own session that waits for its job, as a user's terminal would."""
    (tmp_path / "driver.py").write_text(dedent(DRIVER))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py"), str(source(SLEEP))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def wait_for(driver):
    """Wait until the driver has ended; show what it and the job have said if it does not."""
    try:
        driver.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        driver.kill()
        said = driver.communicate()[0]
        pytest.fail(f"{said}\n{''.join(LocalSession().runner.logs('driven'))}")


def asleep():
    return LocalSession().runner.exists("driven") and (
        "".join(LocalSession().runner.logs("driven")).count("asleep") == 2
    )


def test_ctrl_c_stops_the_job_and_leaves_nothing(driver, engine):
    """SIGINT to the driver: every host gets its SIGTERM, then the engine is as it was."""
    wait_until(asleep)
    driver.send_signal(signal.SIGINT)
    wait_for(driver)

    assert "Stopped" == LocalSession().describe_training_job("driven")["TrainingJobStatus"]
    assert {} == hosts_of(engine)
    assert [] == engine.networks.list(filters={"label": FOLDER_LABEL})


@pytest.fixture
def busy_engine(tmp_path, image, monkeypatch):
    """A proxy between the job and the engine: it refuses two signals, and ends no stream."""
    path = tmp_path / "docker.sock"
    proxy = EngineProxy(path, urlsplit(address()).path, num_refusals=2)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    yield proxy
    proxy.close()


def test_a_busy_engine_does_not_keep_a_job_from_its_end(job, engine, busy_engine):
    """SIGTERM is sent again, and hosts that have ended need no end of their output."""
    estimator = job(SLEEP, instance_count=2)
    running(estimator, engine)
    estimator.latest_training_job.stop()
    wait_until(lambda: estimator.latest_training_job.describe()["TrainingJobStatus"] == "Stopped")

    assert 2 == log_of(estimator).count("received SIGTERM")
    assert (2, 2) == (busy_engine.num_refused, busy_engine.num_held)
    assert {} == hosts_of(engine)


def test_a_killed_driver_takes_its_job_along(driver, engine):
    """kill -9 of the driver: its supervisor notices, stops the hosts and cleans up."""
    wait_until(asleep)
    driver.kill()
    wait_until(
        lambda: LocalSession().describe_training_job("driven")["TrainingJobStatus"] == "Stopped"
    )

    assert {} == hosts_of(engine)


def test_what_a_killed_supervisor_leaves_is_swept_away(job, engine):
    """The next look at the job says what became of it and removes its containers and network."""
    estimator = job(SLEEP, instance_count=2)
    running(estimator, engine)
    name = estimator.latest_training_job.name
    subprocess.run(["pkill", "-9", "-f", f"supervisor .*{name}"], check=True)
    reason = wait_until(lambda: estimator.latest_training_job.describe().get("FailureReason"))

    assert "The supervisor of the job was killed." == reason
    assert {} == hosts_of(engine)
    assert [] == engine.networks.list(filters={"label": FOLDER_LABEL})


def test_a_job_out_of_time_is_stopped(job):
    """max_run counts for containers, too."""
    estimator = job(SLEEP, instance_count=1, max_run=3)
    estimator.fit()

    assert "MaxRuntimeExceeded" == estimator.latest_training_job.describe()["SecondaryStatus"]


def test_credentials_lie_nowhere(job, monkeypatch):
    """Neither in the job's folder nor in what is left of its containers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEVERWRITTEN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never written")
    estimator = job("print('done')", instance_count=1)
    estimator.fit()
    folder = Path(LocalSession().runner.logs_at(estimator.latest_training_job.name)).parent
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]

    assert texts
    assert not any(b"AKIANEVERWRITTEN" in text for text in texts)
