# SPDX-License-Identifier: Apache-2.0
"""Local jobs that are elastic: which ends of hosts they survive, and what is kept of them."""

import json
import tarfile
from pathlib import Path

import pytest
from local_jobs import log, run

from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.runners.local.host_losses import HostLosses
from sagemaker_dist.runners.local.job_state import State
from sagemaker_dist.runners.local.opt_ml_tree import Failure

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def elastic(request_for):
    """Return a function that builds the request of an elastic job of three hosts."""

    def build(least):
        request = request_for(hosts=3)
        request["HyperParameters"][KEY] = render(DataParallel(elastic_min=least))
        return request

    return build


def models_of(described):
    """Return the names of the files that hosts have written to their model."""
    path = described["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("file://")
    with tarfile.open(path) as archive:
        return {member.name for member in archive.getmembers() if member.isfile()}


def losses(runner):
    return State.load(json.loads(Path(runner.root, "job", "state.json").read_text())).losses


def test_a_killed_host_is_no_end_while_enough_are_left(runner, elastic, script):
    """The job completes, with the models of the others alone."""
    script("""
        import os, signal, time
        (base / "model" / host).write_text("weights")
        if host == "algo-1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
    """)
    described = run(runner, elastic(2))

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert {"algo-2", "algo-3"} == models_of(described)
    (loss,) = losses(runner)
    assert loss.startswith("algo-1: The launcher of algo-1 was killed by SIGKILL.")
    assert "[sagemaker-dist] lost algo-1; the job goes on without it" in log(runner)


def test_a_host_that_waited_as_lost_is_reported(runner, elastic, script):
    """Its launcher ends with success after the others, and says that it was lost."""
    script("""
        (base / "model" / host).write_text("weights")
        if host == "algo-2":
            (base / "output" / "lost").write_text("rank 1 was killed by SIGKILL")
    """)
    described = run(runner, elastic(1))

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert ("algo-2: rank 1 was killed by SIGKILL",) == losses(runner)
    assert {"algo-1", "algo-3"} == models_of(described)


def test_too_few_hosts_end_the_job(runner, elastic, script):
    script("""
        import sys, time
        if host == "algo-3":
            time.sleep(20)
        (base / "output" / "failure").write_text(f"{host} rank 0: ValueError: nope")
        sys.exit(1)
    """)
    described = run(runner, elastic(2))

    assert "Failed" == described["TrainingJobStatus"]
    assert described["FailureReason"].endswith(
        "rank 0: ValueError: nope. Fewer hosts than elastic_min=2 were left."
    )


@pytest.fixture
def fallen():
    return HostLosses(2)


def test_losses_are_survived_down_to_elastic_min(fallen):
    assert fallen.survives(Failure(text="first"), 2)
    assert not fallen.survives(Failure(text="second"), 1)
    assert not HostLosses(None).survives(Failure(text="any"), 9)


def test_the_report_of_the_hosts_that_are_left_is_the_reason(fallen):
    """They name all lost hosts; what they wrote comes after the failures of these."""
    error = Failure(text="1 of 3 hosts is left", fields={"kind": "too_few_hosts"})
    fallen.survives(Failure(text="algo-1 was killed"), 2)

    assert error is fallen.cause([Failure(text="algo-2 was killed"), error])


def test_a_long_reason_leaves_room_for_the_count(fallen):
    reason = fallen.cause([Failure(text="x" * 2000)]).reason

    assert 1024 == len(reason)
    assert reason.endswith("Fewer hosts than elastic_min=2 were left.")


def test_a_job_that_is_not_elastic_keeps_its_reason():
    cause = Failure(text="algo-2 rank 1: ValueError: nope")

    assert cause is HostLosses(None).cause([cause])
