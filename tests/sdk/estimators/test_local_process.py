# SPDX-License-Identifier: Apache-2.0
"""Estimators with `instance_type="local_process"`: without AWS and Docker."""

import os
import pickle
import re
import signal
import tarfile
import time
from pathlib import Path

import psutil
import pytest
from error_fields import fields_of
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.inputs import TrainingInput
from sagemaker.local.local_session import file_input

from sagemaker_dist import (
    DataParallel,
    JobError,
    LocalSession,
    OptionError,
    PyTorch,
    TorchDistributed,
)
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.runners import LocalRunner, RecordingRunner

pytestmark = pytest.mark.timeout(60)


def members(uri):
    with tarfile.open(uri.removeprefix("file://")) as archive:
        return {m.name: archive.extractfile(m).read().decode() for m in archive if m.isfile()}


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def launchers(home):
    """Return the processes whose host tree is below a home directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in process.environ().get("SAGEMAKER_BASE_DIR", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_fit_trains_and_says_where_the_model_is(estimator, script, data, tmp_path, capsys):
    script("""
        print(f"[{host} rank 0] " + (base / "input/data/training/numbers.txt").read_text())
        (base / "model" / host).write_text("trained")
    """)
    output = tmp_path / "output"
    built = estimator(output_path=output.as_uri(), hyperparameters={"epochs": 3})
    built.fit({"training": data}, job_name="first")
    shown = capsys.readouterr().out.splitlines()

    assert f"file://{output}/first/output/model.tar.gz" == built.model_data
    assert {"algo-1": "trained", "algo-2": "trained"} == members(built.model_data)
    assert "Completed" == built.latest_training_job.describe()["TrainingJobStatus"]
    assert "first  2 hosts x 2 ranks" == shown[0]
    assert {"[algo-1 rank 0] 1 2 3", "[algo-2 rank 0] 1 2 3"} <= set(shown)
    assert re.fullmatch(f"Completed after 00:0., model: {built.model_data}", shown[-1])


def test_a_path_is_a_directory_of_this_machine(estimator, script, data, tmp_path):
    script("assert (base / 'input/data/training/numbers.txt').exists()")
    built = estimator(distribution=None, instance_count=One())
    built.fit(tmp_path / "my data", logs=False)
    built.fit({"training": tmp_path / "my data"}, logs=False)

    assert "Completed" == built.latest_training_job.describe()["TrainingJobStatus"]


class One:
    """Integer of another type than Python's, as numpy has."""

    def __index__(self):
        return 1


class Interrupted(RecordingRunner):
    """Runner that raises KeyboardInterrupt right after the supervisor has started."""

    released = ""

    def start(self, request, *, attended=False):
        super().start(request, attended=attended)
        raise KeyboardInterrupt

    def release(self, name):
        self.released = name


def test_an_interrupt_while_a_job_starts_stops_it(estimator):
    runner = Interrupted()
    built = estimator(sagemaker_session=LocalSession(runner=runner))
    with pytest.raises(KeyboardInterrupt):
        built.fit(job_name="job")

    assert (["job"], "job") == (runner.stopped, runner.released)


@pytest.mark.parametrize("spell", [str, TrainingInput, file_input])
def test_one_channel_is_called_training(estimator, script, data, spell):
    """A single channel is named "training"; without a distribution each host runs one process."""
    script("assert (base / 'input/data/training/numbers.txt').exists()")
    built = estimator(distribution=None, instance_count=1)
    built.fit(spell(data), logs=False)

    assert "Completed" == built.latest_training_job.describe()["TrainingJobStatus"]


def test_the_request_is_what_sagemaker_would_get(estimator, data):
    """The request has options, checkpoints and environment, as on SageMaker."""
    runner = RecordingRunner()
    built = estimator(
        sagemaker_session=LocalSession(runner=runner),
        checkpoint_s3_uri="file:///checkpoints",
        environment={"COLOUR": "green"},
        entry_point="train.py",
    )
    before = built.source_dir, built.entry_point
    built.fit({"training": data}, wait=False, job_name="job")
    (sent,) = runner.requests
    wire = sent["HyperParameters"].pop(KEY)

    assert DataParallel(processes_per_host=2) == parse(wire)
    assert {"S3Uri": "file:///checkpoints"} == sent["CheckpointConfig"]
    assert {"COLOUR": "green"} == sent["Environment"]
    assert {"DisableProfiler": True} == sent["ProfilerConfig"]
    assert "DebugHookConfig" not in sent
    assert f'"file://{built.source_dir}"' == sent["HyperParameters"]["sagemaker_submit_directory"]
    assert before == (built.source_dir, built.entry_point)
    assert "file:///checkpoints" == built.checkpoint_s3_uri


def test_a_script_in_a_folder_of_the_source(estimator, script):
    """A script in a subdirectory of source_dir runs, although the SDK's local mode drops the
    folder.
    """
    folder = Path(script())
    (folder / "inner").mkdir()
    (folder / "inner" / "main.py").write_text("import beside")
    (folder / "beside.py").touch()
    built = estimator(entry_point="inner/main.py")
    built.fit(logs=False)

    assert "Completed" == built.latest_training_job.describe()["TrainingJobStatus"]


@pytest.mark.parametrize("entry_point", ["train.py", "src/train.py", "{folder}/train.py"])
def test_an_entry_point_needs_no_source_dir(estimator, script, monkeypatch, entry_point):
    folder = Path(script())
    monkeypatch.chdir(folder if entry_point == "train.py" else folder.parent)
    given = entry_point.format(folder=folder)
    built = estimator(source_dir=None, entry_point=given)
    built.fit(logs=False)

    assert (None, given) == (built.source_dir, built.entry_point)
    assert "Completed" == built.latest_training_job.describe()["TrainingJobStatus"]


@pytest.mark.parametrize(
    ("changes", "only"),
    [({}, None), ({"source_dir": None, "entry_point": "src/train.py"}, "train.py")],
)
def test_the_request_says_where_the_code_lies(
    estimator, script, tmp_path, monkeypatch, changes, only
):
    """Without source_dir only the script is sent; attach finds it again."""
    monkeypatch.chdir(tmp_path)
    script("import extra")
    Path("libraries/extra").mkdir(parents=True)
    Path("libraries/extra/__init__.py").touch()
    session = LocalSession(runner=LocalRunner())
    built = estimator(dependencies=["libraries/extra"], sagemaker_session=session, **changes)
    built.fit(wait=False, job_name="job")
    described = built.latest_training_job.describe()
    attached = PyTorch.attach("job", sagemaker_session=session)
    attached.fit(job_name="again", logs=False)
    again = attached.latest_training_job.describe()

    assert {
        "Folder": script(),
        "Only": only,
        "Dependencies": [f"{tmp_path}/libraries/extra"],
    } == described["LocalSource"]
    assert described["LocalSource"] == again["LocalSource"]
    assert "PYTHONPATH" not in described.get("Environment", {})


def test_failure_is_an_error_of_ours_and_of_the_sdks(estimator, script):
    script("""
        import time
        (base / "output" / "failure").write_text("algo-1 rank 1: ValueError: nope")
        time.sleep(10 * (host != "algo-1"))
        raise SystemExit(1)
    """)
    built = estimator()
    with pytest.raises(JobError) as caught:
        built.fit(logs=False, job_name="job")
    error = pickle.loads(pickle.dumps(caught.value))

    assert isinstance(error, UnexpectedStatusException)
    assert "Failed" == error.actual_status
    assert ("job", "training job 'job' failed") == (error.kind, error.as_dict()["what"])
    assert {"host": "algo-1", "exit_code": 1} == error.cause == error.as_dict()["cause"]
    assert str(error) == (
        "training job 'job' failed: algo-1 rank 1: ValueError: nope."
        f" Read the output of every host in {Path.home()}/.sagemaker-dist/jobs/job/logs."
    )
    described = built.latest_training_job.describe()
    assert "algo-1 rank 1: ValueError: nope" == described["FailureReason"]


@pytest.mark.parametrize(
    "options", [DataParallel(processes_per_host=2, fusion_bytes=1 << 20), TorchDistributed()]
)
def test_without_waiting_logs_stop_and_attach_work(estimator, script, options):
    """`fit(wait=False)` returns at once; a new session finds the job by its name."""
    script("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        print("ready")
        time.sleep(100)
    """)
    built = estimator(distribution=options, hyperparameters={"lr": 0.1})
    built.fit(wait=False)
    name = built.latest_training_job.name
    assert "InProgress" == built.latest_training_job.describe()["TrainingJobStatus"]
    built.latest_training_job.stop()
    attached = PyTorch.attach(name, sagemaker_session=LocalSession())

    assert "Stopped" == attached.latest_training_job.describe()["TrainingJobStatus"]
    assert built.distribution == attached.distribution
    assert built.source_dir == attached.source_dir
    assert attached.image_uri is None
    assert built.model_data == attached.model_data
    assert built.hyperparameters() == attached.hyperparameters()


def test_logs_of_a_finished_job_are_shown_again(estimator, script, capsys):
    script("print('hello')")
    built = estimator(instance_count=1, distribution=None)
    built.fit(logs=False)
    assert "hello" not in capsys.readouterr().out
    built.logs()

    assert "[algo-1] hello" in capsys.readouterr().out.splitlines()


OFFLINE = """
    import os, socket, sys
    connect = socket.socket.connect
    def guarded(self, address):
        if self.family != socket.AF_UNIX and not str(address[0]).startswith("127."):
            os._exit(66)
        return connect(self, address)
    socket.socket.connect = guarded
    def no_names(*_, **__):
        os._exit(67)
    socket.getaddrinfo = no_names
    from sagemaker_dist import DataParallel, PyTorch
    if __name__ == "__main__":
        estimator = PyTorch("train.py", source_dir="src", instance_type="local_process",
                            instance_count=2, distribution=DataParallel())
        estimator.fit(wait="nowait" not in sys.argv)
        print("name", estimator.latest_training_job.name)
"""


def test_no_network_credentials_or_region(script, driver, monkeypatch):
    """A job trains with an empty environment and no network, and prints only its own output."""
    script("print('hello')")
    for name in set(os.environ) - {"HOME", "PYTHONPATH"}:
        monkeypatch.delenv(name)
    process = driver(OFFLINE)
    shown = process.communicate(timeout=30)[0].splitlines()

    assert 0 == process.returncode, shown
    assert {"[algo-1] hello", "[algo-2] hello"} <= set(shown)
    assert all(
        line.startswith(
            ("pytorch-training-", "[algo-", "[sagemaker-dist] ", "00:0", "Completed", "name")
        )
        for line in shown
    ), shown


def test_a_job_that_is_not_waited_for_is_found_by_another_process(script, driver, tmp_path):
    """A job keeps running after its driver exits; another process attaches and waits."""
    seen = tmp_path / "seen"
    script(f"""
        import pathlib, time
        while not pathlib.Path({str(seen)!r}).exists():
            time.sleep(0.05)
        """)
    process = driver(OFFLINE, "nowait")
    name = process.communicate(timeout=30)[0].split()[-1]
    began = LocalRunner().describe(name)["TrainingJobStatus"]
    seen.touch()
    attached = PyTorch.attach(name)

    assert "InProgress" == began
    assert "Completed" == attached.latest_training_job.describe()["TrainingJobStatus"]


@pytest.mark.parametrize("stubborn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_interrupt_stops_the_job(script, driver, tmp_path, stubborn):
    """Ctrl-C raises KeyboardInterrupt from fit() and leaves no process; a second Ctrl-C kills the
    job.
    """
    script(f"""
        import signal, sys, time
        stop = signal.SIG_IGN if {stubborn} else lambda *_: sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        print("ready")
        time.sleep(100)
    """)
    process = driver(OFFLINE)
    assert any(line == "[algo-1] ready\n" for line in process.stdout)
    wait_until(lambda: len(launchers(tmp_path)) == 2)
    process.send_signal(signal.SIGINT)
    if stubborn:
        time.sleep(1)
        assert 2 == len(launchers(tmp_path))
        process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=15)[0]

    assert "Stopped after" in rest or stubborn
    assert "KeyboardInterrupt" in rest
    assert process.returncode != 0
    assert [] == launchers(tmp_path)


def test_an_unknown_job_is_not_looked_for_without_a_region():
    """attach of an unknown name without a region says that this machine has no such job."""
    with pytest.raises(JobError) as caught:
        PyTorch.attach("nosuch")

    assert ("job_name", "not_found") == fields_of(caught.value)[0]


def test_max_cost(tmp_path, capsys):
    """max_run is what max_cost pays for, as long as it is set; a local host needs a price."""
    script = tmp_path / "train.py"
    script.touch()
    given = {"entry_point": str(script), "instance_type": "local_process", "instance_count": 2}
    estimator = PyTorch(**given, max_cost=1, price_per_hour=3)

    assert 3600 // 6 - 120 == estimator.max_run
    estimator.max_cost = 2
    assert 2 * 3600 // 6 - 120 == estimator.max_run
    with pytest.raises(OptionError) as raised:
        PyTorch(**given, max_cost=1)
    assert ("unknown_price", ("max_cost",)) == (raised.value.kind, raised.value.about)


def test_job_stops_before_it_costs_more(estimator, script):
    """The supervisor sends SIGTERM after the time that max_cost pays for; the model is kept."""
    script("""
        import signal, time
        def save(*_):
            (base / "model" / host).write_text("saved")
            raise SystemExit
        signal.signal(signal.SIGTERM, save)
        print("hourly", __import__("os").environ["SMDIST_USD_PER_HOUR"], flush=True)
        time.sleep(60)
    """)
    built = estimator(max_run=1, max_cost=1, price_per_hour=3)
    built.fit(job_name="short")
    described = built.latest_training_job.describe()

    assert ("Stopped", "MaxRuntimeExceeded") == (
        described["TrainingJobStatus"],
        described["SecondaryStatus"],
    )
    assert {"algo-1": "saved", "algo-2": "saved"} == members(built.model_data)
    assert {"SMDIST_USD_PER_HOUR": "6"} == described["Environment"]

    built.max_cost = built.price_per_hour = None
    script("pass")
    built.fit(job_name="without")
    assert not built.latest_training_job.describe().get("Environment")
