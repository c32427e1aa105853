# SPDX-License-Identifier: Apache-2.0
"""`horovodrun`: its command line, ranks of a script, and the package named horovod beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from error_fields import fields_raised

from smdist.launch.horovodrun_options import RunOptions, read_request

COMPAT = Path(__file__).parents[3] / "container/compat/horovod"
RUN = [sys.executable, "-m", "smdist.launch.horovodrun"]
SHOW = """
import os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE",
         "HOROVOD_CROSS_SIZE", "SMDIST_FUSION_BYTES")
print(*[os.environ[name] for name in names], os.getcwd(), *sys.argv[1:])
if "--fail" in sys.argv and os.environ["RANK"] == "1":
    sys.exit(3)
if "--wait" in sys.argv:
    import time
    time.sleep(60)
"""
SUM = """
import torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import Sum

hvd.init()
print("sum", hvd.allreduce(torch.ones(2), op=Sum).tolist(), "of", hvd.size())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SHOW)
    return path


def run(*words, cwd, **environ):
    done = subprocess.run(
        [*RUN, *words],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def read(*words, file=""):
    return read_request(words, lambda _: file)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-np 2 python a.py -np 3", {"num_ranks": 2, "command": ("python", "a.py", "-np", "3")}),
        ("--num-proc=2 -H localhost:2 a", {"num_ranks": 2, "hosts": "localhost:2"}),
        (
            "-np 2 -H 127.0.0.1:1,localhost --gloo a",
            {"num_ranks": 2, "hosts": "127.0.0.1:1,localhost", "uses_gloo": True},
        ),
        (
            "-np 1 --verbose --start-timeout 9 --fusion-threshold-mb 4 -- a",
            {"num_ranks": 1, "is_verbose": True, "start_timeout_seconds": 9, "fusion_mib": 4},
        ),
        ("-np 1 --timeline-filename t.json a", {"num_ranks": 1, "timeline_file": "t.json"}),
        ("--check-build", {"shows_build": True, "command": ()}),
        ("-v", {"shows_version": True, "command": ()}),
    ],
)
def test_options_that_are_carried_out(words, expected):
    assert RunOptions(**{"command": ("a",), **expected}) == read(*words.split())


@pytest.mark.parametrize(
    ("words", "about", "kind"),
    [
        (["a"], "-np", "missing"),
        (["-np", "2"], "command", "missing"),
        (["-np", "two", "a"], "-np", "option"),
        (["-np", "0", "a"], "-np", "option"),
        (["-np", "4", "-H", "localhost:2", "a"], "-np", "difference"),
        (["-np", "2", "-H", "other:2", "a"], "-H", "unsupported"),
        (["-np", "2", "-H", "localhost:x", "a"], "-H", "option"),
        (["-np", "2", "--autotune", "a"], "--autotune", "option"),
        (["-np", "2", "--cycle-time-ms", "x", "a"], "--cycle-time-ms", "option"),
        (["-np", "2", "--log-level", "LOUD", "a"], "--log-level", "option"),
        (["-np", "2", "--no-stall-check", "a"], "--no-stall-check", "option"),
        (["-np", "2", "--min-np", "1", "a"], "--min-np", "option"),
        (["-np", "2", "--mpi", "a"], "--mpi", "option"),
        (["-np", "2", "--timeline-mark-cycles", "a"], "--timeline-mark-cycles", "option"),
        (["-np", "2", "--verbos", "a"], "--verbos", "option"),
    ],
)
def test_everything_else_is_refused_by_name(words, about, kind):
    assert (about, kind) in fields_raised(lambda: read(*words))


def test_settings_of_speed_and_log_have_no_effect_but_a_line():
    """Results do not depend on them; the options after them are read."""
    words = "--cycle-time-ms 3.5 --disable-cache --log-level=debug -np 2 a"
    lines = read(*words.split()).notes

    assert RunOptions(num_ranks=2, command=("a",), notes=lines) == read(*words.split())
    assert ["--cycle-time-ms", "--disable-cache", "--log-level"] == [
        line.partition(" has no effect: ")[0] for line in lines
    ]


@pytest.mark.parametrize("words", [["-np", "0", "a"], ["-n", "two", "a"], ["a.py", "-np"]])
def test_a_wrong_number_of_ranks_is_one_fault(words):
    """It is not missing, too; after the command it is an argument of the command."""
    kind = "missing" if words[0] == "a.py" else "option"
    assert [("-np", kind)] == fields_raised(lambda: read(*words))


def test_all_faults_come_at_once_and_a_host_file_is_read():
    found = fields_raised(
        lambda: read("--mpi", "-np", "9", "--hostfile", "f", file="localhost slots=2\nb slots=1\n")
    )

    assert ["--mpi", "command", "--hostfile", "-np"] == [about for about, _ in found]


def test_ranks_have_the_variables_of_horovod_and_of_torchrun(script):
    status, lines, errors = run(
        "-np", "2", "-H", "localhost:2", "--fusion-threshold-mb", "4", "--verbose",
        sys.executable, "train.py", "--x", "1", cwd=script.parent,
    )  # fmt: skip

    assert (0, 2) == (status, len(lines)), errors
    for rank, line in enumerate(sorted(lines)):
        head, _, said = line.partition("] ")
        assert f" rank {rank}" in head
        assert f"{rank} 2 {rank} {rank} 2 2 1 4194304 {script.parent} --x 1" == said
    assert "the command of each rank is" in errors


def test_a_failure_ends_all_ranks_with_its_status(script):
    """The program may be any, not only Python."""
    words = ["sh", "-c", f"exec {sys.executable} train.py --fail --wait"]
    start = time.monotonic()
    status, _, errors = run("-np", "2", *words, cwd=script.parent, SMDIST_FUSION_BYTES="1048576")

    assert 3 == status
    assert "rank 1 exited with code 3" in errors
    assert time.monotonic() - start < 20


def test_sigint_ends_all_ranks(script):
    with subprocess.Popen(
        [*RUN, "-np", "2", sys.executable, "train.py", "--wait"],
        cwd=script.parent,
        env={**os.environ, "SMDIST_FUSION_BYTES": "1048576", "SMDIST_STOP_SECONDS": "5"},
        stdout=subprocess.PIPE,
        text=True,
    ) as ranks:
        assert ranks.stdout.readline()
        ranks.send_signal(signal.SIGINT)

        assert 130 == ranks.wait(30)


def test_a_wrong_environment_or_program_starts_nothing(tmp_path):
    status, lines, errors = run("-np", "2", "no-such-program", cwd=tmp_path)

    assert (1, []) == (status, lines)
    assert "there is no program 'no-such-program'" in errors
    status, _, errors = run("-np", "2", "true", cwd=tmp_path, SMDIST_FUSION_BYTES="x")

    assert 1 == status
    assert "SMDIST_FUSION_BYTES" in errors


def test_a_script_for_horovod_runs_unchanged(tmp_path):
    """Under the package that has Horovod's name."""
    (tmp_path / "train.py").write_text("import sagemaker_dist_horovod\n" + SUM)  # as its *.pth does
    words = ["-np", "2", "--timeline-filename", "timeline.json", sys.executable, "train.py"]
    status, lines, errors = run(*words, cwd=tmp_path, PYTHONPATH=str(COMPAT))
    events = json.loads((tmp_path / "timeline.json").read_text())

    assert 0 == status, errors
    assert 2 == sum("sum [2.0, 2.0] of 2" in line for line in lines)
    assert any(each["name"].startswith("allreduce.") for each in events)


@pytest.mark.slow
def test_a_rank_that_ends_early_with_success_is_named(tmp_path):
    """The reason begins with it, and the error says what it may have had."""
    early = "if hvd.rank() == 1: raise SystemExit(0)\n" + "hvd.allreduce(torch.ones(2))\n"
    (tmp_path / "train.py").write_text("import sagemaker_dist_horovod\n" + SUM + early)
    status, _, errors = run(
        "-np", "2", sys.executable, "train.py", cwd=tmp_path, PYTHONPATH=str(COMPAT)
    )

    assert 1 == status
    assert "rank 1 left while other ranks needed it: " in errors
    assert "perhaps it had fewer batches" in errors


def _python(code, tmp_path, *path):
    places = os.pathsep.join(map(str, (COMPAT, *path)))
    return subprocess.run(
        [sys.executable, "-c", "import sagemaker_dist_horovod\n" + code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_horovod_itself_is_not_shadowed(tmp_path):
    """A folder of the same name without code is no package, and does not hide ours."""
    (tmp_path / "real/horovod").mkdir(parents=True)
    (tmp_path / "real/horovod/__init__.py").write_text("own = True")
    (tmp_path / "other/horovod").mkdir(parents=True)
    theirs = _python("import horovod; print(horovod.own)", tmp_path, tmp_path / "real")
    ours = _python("import horovod; print(horovod.__version__)", tmp_path, tmp_path / "other")

    assert "True\n" == theirs.stdout
    assert "uninstall it to run on the engine of sagemaker-dist" in theirs.stderr
    assert ("0.28.1\n", "") == (ours.stdout, ours.stderr)


def test_modules_that_are_missing_say_why(tmp_path):
    names = ["spark", "ray", "mxnet", "runner", "data"]
    code = """
import importlib
for name in {names}:
    try:
        importlib.import_module(f"horovod.{{name}}")
    except ImportError as error:
        print(error)
"""
    done = _python(code.format(names=[*names, "data.data_loader_base"]), tmp_path)

    assert [f"horovod.{name}" for name in [*names, "data"]] == [
        line.partition(" is not available in sagemaker-dist: ")[0]
        for line in done.stdout.splitlines()
    ], done.stderr


def test_names_of_all_frameworks(tmp_path):
    """Process sets are those of the framework that was imported before."""
    code = """
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
try:
    from horovod.common.process_sets import ProcessSet
except ImportError as error:
    print(error)
import horovod.torch as hvd
from horovod.common.process_sets import ProcessSet, global_process_set
print(HorovodInternalError is hvd.HorovodInternalError, ProcessSet is hvd.ProcessSet)
print(global_process_set is hvd.global_process_set, HostsUpdatedInterrupt().skip_sync)
from horovod.common.util import cuda_built, gloo_built, nccl_built
print(cuda_built() is hvd.cuda_built(), gloo_built(verbose=True), nccl_built())
"""
    done = _python(code, tmp_path)
    refused, *others = done.stdout.splitlines()

    assert refused.endswith("Import horovod.torch or horovod.tensorflow before it."), done.stderr
    assert ["True True", "True False", "True False 0"] == others


def test_both_apis_of_keras_are_there(tmp_path):
    code = """
import horovod.keras as a, horovod.tensorflow.keras as b, horovod.tensorflow as c
from horovod.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
try:
    import horovod.tensorflow.data.compute_service
except ImportError as error:
    print(error)
print(a.size is b.size, a.callbacks.MetricAverageCallback is MetricAverageCallback, c.rank.__name__)
"""
    pytest.importorskip("tensorflow", reason="the names of Keras need TensorFlow")
    done = _python(code, tmp_path)
    refused, others = done.stdout.splitlines()

    assert refused.startswith("horovod.tensorflow.data is not available"), done.stderr
    assert others == "True True rank"
