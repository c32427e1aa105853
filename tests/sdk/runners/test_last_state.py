# SPDX-License-Identifier: Apache-2.0
"""The last state of a job whose disk is full when it ends."""

import errno
import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from local_jobs import log, run

from sagemaker_dist import JobError
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners.local import output
from sagemaker_dist.runners.local.job_folder import JobFolder, append
from sagemaker_dist.runners.local.job_state import State

pytestmark = pytest.mark.timeout(120)

NEXT_STATE = f"state.json.{os.getpid()}"  # each writer has a name of its own for the next state
FILL = """
    import os
    folder = base.parents[1]
    (folder / f"state.json.{os.getppid()}").mkdir()  # every write of the supervisor fails
"""


@pytest.fixture
def full(tmp_path, request_for):
    """Return the folder of a job that runs, on a disk that is full by now."""
    request = request_for()
    folder = JobFolder(tmp_path / "jobs/job")
    folder.create(request, plan_local_job(request))
    os.close(folder.lock())
    (folder.path / NEXT_STATE).mkdir()  # every write fails
    return folder


def test_a_job_on_a_full_disk_completes(runner, request_for, script):
    """The last state is written into reserved space, with all its fields."""
    script(FILL + "    (base / 'model/weights').write_text('1')")
    described = run(runner, request_for(hosts=1))

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert "FailureReason" not in described
    assert described["TrainingStartTime"] <= described["TrainingEndTime"]
    assert "Completed" == runner.describe("job")["SecondaryStatus"]


def test_the_failure_of_a_job_on_a_full_disk_is_told(runner, request_for, script):
    script(FILL + "    raise SystemExit(3)")
    described = run(runner, request_for(hosts=1))

    assert "Failed" == described["TrainingJobStatus"]
    assert {"host": "algo-1", "exit_code": 3} == described["RootCause"]


def test_a_state_that_is_too_long_loses_its_cause_alone(full):
    long = State().become("Failed", "Failed", "boom", {"why": "x" * (1 << 20)})
    full.write_state(long)

    assert ("Failed", "boom", {}) == (
        full.state().status,
        full.state().reason,
        full.state().cause,
    )


def test_an_end_that_cannot_be_written_is_no_kill(full):
    """Where not even the reserved space can be written, the reason says so."""
    (full.path / "state.reserve").unlink()
    (full.path / "state.reserve").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number says which
        full.write_state(State().become("Completed", "Completed"))

    assert errno.EISDIR == caught.value.errno
    assert ("Failed", {"kind": "not_writable"}) == (full.state().status, full.state().cause)


@pytest.mark.parametrize("name", [NEXT_STATE, "state.reserve"], ids=["next", "reserve"])
def test_links_are_not_followed(full, tmp_path, name):
    """Neither the next state nor the reserved space is written through a link."""
    other = tmp_path / "other"
    other.write_text("mine")
    if name == NEXT_STATE:
        (full.path / name).rmdir()
    else:
        (full.path / name).unlink()
    (full.path / name).symlink_to(other)
    with suppress(OSError):
        full.write_state(State().become("Completed", "Completed"))

    assert "mine" == other.read_text()


def test_two_writers_of_a_state_have_names_of_their_own(full):
    """The name of one of them is taken, and the other one writes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(full.write_state, State().become("Completed", "Completed")).result()

    assert "Completed" == full.state().status


def test_logs_are_neither_written_nor_read_through_a_link(full, runner, tmp_path):
    """A link could show a file that the user of the container could not read."""
    other = tmp_path / "other"
    other.write_text("mine")
    full.all_log.unlink()
    full.all_log.symlink_to(other)

    assert 4 == append(full.all_log, b"line")
    assert "mine" == other.read_text()
    with pytest.raises(JobError) as caught:
        next(runner.logs("job"))
    assert "link" == caught.value.kind


def test_a_supervisor_that_was_killed_is_told_from_that(full):
    assert ("Failed", {"kind": "killed"}) == (full.state().status, full.state().cause)


def test_the_reserved_space_is_given_back(runner, request_for):
    """At the end of the supervisor, a moment after the last state is there to be read."""
    run(runner, request_for(hosts=1))
    deadline = time.monotonic() + 20
    while (runner.root / "job/state.reserve").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_that_a_full_disk_did_not_take_is_counted(runner, request_for, script):
    """The job completes; its description and the end of what fit() shows say what is lost."""
    script("""
    log = base.parents[1] / "logs/all.log"
    log.unlink()
    log.symlink_to("/dev/full")  # every write: no space left on device
    print("x" * 99, flush=True)
    """)
    described = run(runner, request_for(hosts=1))

    assert "Completed" == described["TrainingJobStatus"]
    assert len("[algo-1] ") + 100 <= described["LostLogBytes"]


def test_a_write_that_is_cut_loses_the_rest(tmp_path):
    """A disk with room for half of the output takes this half."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        lost = append(tmp_path / "log", b"x" * 150)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)

    assert (50, 100) == (lost, (tmp_path / "log").stat().st_size)


def test_output_beyond_the_limit_is_cut_in_the_middle(tmp_path, monkeypatch):
    """The log keeps the beginning and the end of a host's output, and says what it lacks."""
    monkeypatch.setattr(output, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(output, "_LAST_BYTES", 100)
    read_end, write_end = os.pipe()
    (tmp_path / "logs").mkdir()
    copied = output.Output.of(read_end, "algo-1", JobFolder(tmp_path))
    lines = [f"line {number:03}\n" for number in range(200)]
    for each in lines:
        os.write(write_end, each.encode())
        copied.read()
    os.close(write_end)
    copied.drain()
    os.close(read_end)
    kept = (tmp_path / "logs/all.log").read_text().splitlines()
    own = [each.removeprefix("[algo-1] ") for each in kept if each.startswith("[algo-1]")]
    notes = [each for each in kept if each.startswith("[sagemaker-dist] algo-1 ")]

    assert ["line 000", "line 199"] == [own[0], own[-1]]
    assert (200 - len(own)) * 18 == copied.num_lost > 0
    assert f"wrote {copied.num_lost:,} more bytes, which were left out" in notes[1]
    assert kept.index(notes[0]) + 1 == kept.index(notes[1]) == 1000 // 18 + 1
