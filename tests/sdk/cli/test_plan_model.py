# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist plan model.py`: instance types become the planner's input, and its output is
passed on.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from textwrap import dedent

import psutil
import pytest

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.cli import main
from sagemaker_dist.cli.split.cluster import cluster_of
from sagemaker_dist.errors import OptionError

GIB = 2**30


@pytest.fixture
def interpreter(tmp_path):
    """Return a function that writes a stub Python interpreter, which runs the given lines."""

    def write(body):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{dedent(body)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def planner_arguments(capfd, interpreter, *arguments):
    """Return the command line that the planner gets, without interpreter and module."""
    python = interpreter("import json; print(json.dumps(sys.argv[1:]))")
    status = main(["plan", "model.py", "--python", python, *arguments])
    said = capfd.readouterr()

    assert 0 == status, said.err
    module, *rest = json.loads(said.out)[1:]
    assert "smdist.modelparallel.planner" == module
    return rest


def test_cluster_of_an_instance_type(capfd, interpreter):
    """Hosts, ranks, links and devices follow from the catalogue."""
    rest = planner_arguments(
        capfd, interpreter, "--instance-type=ml.p4d.24xlarge", "--instance-count=2"
    )
    file, program, flag, cluster = rest

    assert ("model.py", "--program=sagemaker-dist plan", "--cluster") == (file, program, flag)
    assert {
        "num_hosts": 2,
        "ranks_per_host": 8,
        "inside": {"latency_seconds": 10e-6, "bytes_per_second": 300e9},
        "across": {"latency_seconds": 30e-6, "bytes_per_second": 6.25e9},
        "device": {
            "name": "NVIDIA A100",
            "memory_bytes": 36 * GIB,
            "flops_per_second": 312e12,
            "bytes_per_second": 1555e9,
        },
    } == json.loads(cluster)


def test_constraints_go_on_as_they_were_said(capfd, interpreter):
    """The planner's options are passed on unchanged and unchecked."""
    given = [
        "--device-memory=16GiB",
        "--device-flops=1e12",
        "--microbatches=8",
        "--pipeline-parallel-degree=auto",
        "--data-parallel-degree=2",
        "--pipeline=1f1b",
        "--active-microbatches=-3",
        "--virtual-stages=2",
        "--optimize=memory",
        "--memory-weight=0.5",
        "--state-bytes=2,2,12",
    ]
    more = ["--measure", "--json", "--save=plan.json", "--plot=plan.png"]
    rest = planner_arguments(capfd, interpreter, "--instance-type=local_process", *more, *given)

    assert {*given, *more} == set(rest[4:])


@pytest.mark.parametrize("name", sorted(training_instances()))
def test_every_type_is_a_cluster_or_refused(name):
    """Every instance type can be planned for, except those with Neuron accelerators."""
    instance = training_instances()[name]
    if instance.is_neuron:
        with pytest.raises(OptionError) as caught:
            cluster_of(name, num_hosts=2)

        assert (("instance_type",), "unsupported") == (caught.value.about, caught.value.kind)
        return
    cluster = cluster_of(name, num_hosts=2)

    assert max(1, instance.num_accelerators) == cluster.ranks_per_host
    assert 0 < cluster.device.memory_bytes < 300 * GIB or not instance.has_gpu
    assert 0 < cluster.across.bytes_per_second < 500e9


def test_cpus():
    """Ranks of a host share its memory and network; the speed of CPUs is unknown."""
    cluster = cluster_of("ml.c5.18xlarge", num_hosts=1, ranks_per_host=4)

    assert int(144 / 4 * 0.9 * GIB) == cluster.device.memory_bytes
    assert 25e9 / 8 / 4 == cluster.across.bytes_per_second
    assert cluster.device.flops_per_second is None


@pytest.mark.parametrize("name", ["local_process", "local"])
def test_this_machine(name):
    """All local hosts share this machine's memory."""
    cluster = cluster_of(name, num_hosts=2, ranks_per_host=2)

    assert int(psutil.virtual_memory().total / 4 * 0.9) == cluster.device.memory_bytes
    assert cluster.inside == cluster.across


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--instance-type is missing: model.py is a model"),
        (["--instance-type=ml.p4d.24xlarg"], "Did you mean 'ml.p4d.24xlarge'?"),
        (["--instance-type=ml.trn1.32xlarge"], "it has Trainium accelerators"),
        (["--instance-type=local_gpu"], "which GPUs this machine has"),
        (["--instance-type=ml.p4d.24xlarge", "--ranks-per-host=9"], "has 8 GPUs, and NCCL refuses"),
        (["--set", "a=1"], "--set is given, but model.py is a model: the option is for job files"),
        (["--region", "x", "--ask"], "2 faults in this request"),
    ],
)
def test_faults(capfd, given, said):
    """Faults exit with 2, and the planner is not started."""
    status = main(["plan", "model.py", *given])
    captured = capfd.readouterr()

    assert 2 == status
    assert said in captured.err
    assert "" == captured.out


@pytest.mark.parametrize("option", ["--instance-count=2", "--measure", "--save=x", "--pipeline=x"])
def test_options_of_models_are_refused_beside_a_job_file(capsys, job_file, option):
    """Each option that is only for models is refused by name."""
    status = main(["plan", job_file(), option])
    name = option.partition("=")[0]

    assert 2 == status
    assert f"{name} is given, but job.toml is not a model" in capsys.readouterr().err


def test_errors_and_status_are_the_planners(capfd, interpreter):
    """The planner's errors and exit status become the command's; other output is passed on."""
    python = interpreter(
        """
        sys.stderr.write("captured 3 units\\nplanner: model.py has no example(): why. Fix it.\\n")
        print("half a plan")
        sys.exit(2)
        """
    )
    status = main(["plan", "model.py", "--instance-type=ml.c5.xlarge", "--python", python])
    said = capfd.readouterr()

    assert 2 == status
    assert "half a plan\n" == said.out
    assert "captured 3 units\nsagemaker-dist: model.py has no example(): why. Fix it.\n" in said.err


@pytest.mark.parametrize(
    "words",
    [
        "Error while finding module specification for 'smdist.modelparallel.planner'"
        " (ModuleNotFoundError: No module named 'smdist')",
        "No module named smdist.modelparallel.planner",
    ],
)
def test_runtime_is_missing(capfd, interpreter, words):
    """A missing or older runtime gives an error with an install command as hint."""
    python = interpreter(f"sys.stderr.write({f'{sys.executable}: {words}'!r}); sys.exit(1)")
    status = main(["plan", "model.py", "--instance-type=ml.c5.xlarge", "--python", python])
    said = capfd.readouterr().err

    assert 1 == status
    assert f"{python} has no smdist.modelparallel.planner" in said
    assert "pip install ./container" in said


def test_python_itself_says_so(capfd, tmp_path):
    """The text in the test above is what a Python without the runtime really prints."""
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    status = main(["plan", "model.py", "--instance-type=ml.c5.xlarge", "--python", str(python)])

    assert 1 == status
    assert "has no smdist.modelparallel.planner" in capfd.readouterr().err


def test_interpreter_is_missing(capfd):
    status = main(["plan", "model.py", "--instance-type=ml.c5.xlarge", "--python", "/no/python"])

    assert 1 == status
    assert "/no/python cannot be run" in capfd.readouterr().err


def test_planner_is_killed(capfd, interpreter):
    """A planner killed by SIGKILL gives an error that names memory."""
    python = interpreter("os.kill(os.getpid(), 9)")
    status = main(["plan", "model.py", "--instance-type=ml.c5.xlarge", "--python", python])

    assert 1 == status
    assert "the planner was killed by signal 9" in capfd.readouterr().err


def test_nothing_is_left_behind(interpreter, tmp_path):
    """SIGTERM ends the planner, too."""
    python = interpreter(
        f"""
        with open({str(tmp_path / "pid")!r}, "w") as file:
            file.write(str(os.getpid()))
        sys.stderr.write("started\\n")
        sys.stderr.flush()
        time.sleep(120)
        """
    )
    command = [sys.executable, "-m", "sagemaker_dist.cli", "plan", "model.py"]
    command += ["--instance-type=ml.c5.xlarge", "--python", python]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.stderr.readline() != "started\n":
            assert process.poll() is None
        process.terminate()
        status = process.wait(timeout=30)
    planner = int((tmp_path / "pid").read_text())

    assert 128 + signal.SIGTERM == status
    assert _is_gone(planner)


def _is_gone(pid):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
    return False


def test_unknown_speed_is_said(capfd, interpreter):
    """An unknown accelerator speed gives a note, unless --device-flops is passed."""
    python = interpreter("pass")
    command = ["plan", "model.py", "--instance-type=ml.g7e.12xlarge", "--python", python]
    main(command)
    noted = capfd.readouterr().err
    main([*command, "--device-flops=1e14"])

    assert "is unknown: the balance" in noted
    assert "is unknown: the balance" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "model.py", "--instance-type=local_process"],
        ["calibrate"],
        ["compare", "plan.json", "trace.json"],
    ],
)
def test_an_interpreter_that_says_nothing_is_named(capfd, interpreter, command):
    """Programs that are no Python end without a word, such as /bin/false."""
    python = interpreter("sys.exit(3)")

    assert 1 == main([*command, "--python", python])
    assert f"{python} ended with status 3" in capfd.readouterr().err


def test_no_framework_is_imported():
    """The command imports neither torch nor the runtime."""
    code = (
        "import sys; from sagemaker_dist.cli import main;"
        " main(['plan', 'model.py', '--instance-type', 'local_process', '--python', '/no/python']);"
        " sys.exit(any(name in sys.modules for name in ('torch', 'smdist', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert 0 == done.returncode


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["calibrate", "-o", "c.json", "--seconds=3", "--channel=data", "--json"],
            ["smdist.modelparallel.calibrate", "--output=c.json", "--seconds=3.0", "--json",
             "--channel=data"],
        ),
        (
            ["compare", "plan.json", "trace.json", "--json"],
            ["smdist.modelparallel.compare", "--json", "--", "plan.json", "trace.json"],
        ),
    ],
)  # fmt: skip
def test_calibrate_and_compare_run_in_the_runtime(capfd, interpreter, command, expected):
    python = interpreter("import json; print(json.dumps(sys.argv[2:]))")

    assert 0 == main([*command, "--python", python])
    assert expected == json.loads(capfd.readouterr().out)


def test_a_calibration_is_passed_to_the_planner(capfd, interpreter):
    rest = planner_arguments(
        capfd, interpreter, "--instance-type=local_process", "--calibration=c.json"
    )

    assert "--calibration=c.json" in rest
