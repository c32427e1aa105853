# SPDX-License-Identifier: Apache-2.0
"""`python -m smdist.modelparallel.planner`, by itself and behind `sagemaker-dist plan model.py`."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

from sagemaker_dist.cli import main as sagemaker_dist
from smdist.modelparallel.core.calibration import (
    Calibration,
    MachineFacts,
    MessageTime,
    ProductSpeed,
    save,
)
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.planner.command import main

MODEL = """
    import torch
    from torch import nn
    def model():
        layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)]
        return nn.Sequential(*layers, nn.Linear(64, 256))
    def example():
        return torch.zeros(16, 64)
    """
FOUR = ["--ranks-per-host=4", "--device-memory=1GiB", "--device-flops=1e12"]
PIPELINE = [*FOUR, "--pipeline-parallel-degree=4"]


@pytest.fixture(autouse=True)
def _model_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(dedent(MODEL))


def test_text(capsys):
    """For people: what was decided, and why."""
    status = main(["model.py", *PIPELINE])
    said = capsys.readouterr().out

    assert 0 == status
    assert "Plan for Sequential on 4 ranks" in said
    assert "limit 1.00 GiB" in said
    assert "estimated for cpu" in " ".join(said.split())


def test_json_is_what_is_saved(capsys, tmp_path):
    """For programs; and it is read back as a plan."""
    status = main(["model.py", *PIPELINE, "--json", "--save=plan.json"])
    printed = json.loads(capsys.readouterr().out)

    assert 0 == status
    assert printed == json.loads((tmp_path / "plan.json").read_text())
    assert Plan.load(tmp_path / "plan.json") == Plan.from_document(printed)


def test_the_model_prints_to_standard_error(capfd, tmp_path):
    """Standard output is the plan alone: print, C and other programs go elsewhere meanwhile."""
    loud = """
    print("from the file")
    def model():
        import ctypes, os
        ctypes.CDLL(None).puts(b"from C")
        os.system("echo from a program")
        print("from model()")
        return quiet()
    """
    text = dedent(MODEL).replace("def model", "def quiet") + dedent(loud)
    (tmp_path / "model.py").write_text(text)
    status = main(["model.py", *PIPELINE, "--json"])
    print("and after it")
    said = capfd.readouterr()
    printed, _, after = said.out.rpartition("}\n")

    assert 0 == status
    assert 4 == json.loads(printed + "}")["pipeline_parallel_degree"]
    assert "and after it\n" == after
    for words in ("from the file", "from C", "from a program", "from model()"):
        assert words in said.err


def test_plot(tmp_path):
    assert 0 == main(["model.py", *PIPELINE, "--plot=plan.svg"])
    assert (tmp_path / "plan.svg").stat().st_size > 10_000


def test_measured(capsys):
    """The model is built with values, and its parts run here."""
    status = main(["model.py", "--ranks-per-host=2", "--microbatches=4", "--measure", "--json"])
    found = json.loads(capsys.readouterr().out)

    assert 0 == status
    assert "measured" == found["forecast"]["source"]


@pytest.mark.parametrize(
    ("given", "decided"),
    [
        (["--microbatches=8"], ("num_microbatches", 8)),
        (["--data-parallel-degree=2"], ("data_parallel_degree", 2)),
        (["--pipeline=simple"], ("schedule", "simple")),
        (["--pipeline=looped_bfs", "--virtual-stages=2", "--data-parallel-degree=2"],
         ("virtual_stages", 2)),
        (["--pipeline=interleaved", "--active-microbatches=5", "--pipeline-parallel-degree=4"],
         ("active_microbatches", 5)),
    ],
)  # fmt: skip
def test_constraints(capsys, given, decided):
    status = main(["model.py", *FOUR, "--json", *given])
    name, value = decided

    assert 0 == status
    assert value == json.loads(capsys.readouterr().out)[name]


def test_state_bytes(capsys):
    """Half of Adam's 16 bytes."""
    held = []
    for state in ("4,4,8", "2,2,4"):
        main(["model.py", *PIPELINE, "--microbatches=4", "--json", f"--state-bytes={state}"])
        memory = json.loads(capsys.readouterr().out)["forecast"]["memory"]
        held.append(sum(rank["state_bytes"] for rank in memory))

    assert held[0] == 2 * held[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["model.py"], "--cluster is missing"),
        (["model.py", "--cluster={}", "--hosts=2"], "--hosts and --cluster are both given"),
        (["model.py", "--cluster={"], "--cluster is not JSON"),
        (["model.py", "--hosts=0"], "'0' is not an integer of at least 1"),
        (
            ["model.py", "--hosts=2", "--microbatches=few"],
            "'few' is not an integer of at least 1, or auto",
        ),
        (
            ["model.py", "--hosts=2", "--state-bytes=1,2"],
            "three numbers of at least 0, such as 4,4,8",
        ),
        (["model.py", "--hosts=2", "--device-flops=-1"], "is not a number above 0"),
        (["model.py", "--hosts=2", "--device-memory=much"], "device_memory is 'much'"),
        (["model.py", "--hosts=2", "--pipeline=1f2b"], "Did you mean '1f1b'"),
        (
            ["model.py", "--hosts=2", "--plot=plan.txt"],
            "plan.txt cannot be written: .txt is no picture format",
        ),
        (["model.py", "--hosts=2", "--save=no/plan.json"], "no/plan.json cannot be written"),
        (["model.py", "--hosts=2", "--save=."], ". cannot be written: it is a folder"),
        (["model.py", "--hosts=2", "--device-memory=1KiB"], "no plan fits"),
        (["model.py", "--hosts=50000"], "the cluster has 50,000 ranks: a search takes at most"),
        (["model.py", "--hosts=2", "--virtual-stages=99"], "this needs 99 stages"),
        (["other.py", "--hosts=2"], "other.py cannot be read"),
        (["--hosts=2"], "FILE"),
        (["model.py", "--hosts=2", "--speed"], "unrecognized arguments: --speed"),
    ],
)
def test_faults(capsys, given, said):
    """They end with 2, and begin with who says it."""
    status = main(given)
    captured = capsys.readouterr()

    assert 2 == status
    assert captured.err.splitlines()[-1].startswith("planner: ")
    assert said in captured.err
    assert "" == captured.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "Run python -m smdist.modelparallel.planner --help"),
        (
            ["--program=sagemaker-dist plan"],
            "sagemaker-dist plan does not accept these arguments. Run sagemaker",
        ),
    ],
)
def test_faults_name_what_was_typed(capsys, given, said):
    """Who asked through another command did not type ours."""
    assert 2 == main(["model.py", "--hosts=2", "--speed", *given])
    assert said in capsys.readouterr().err


def test_ctrl_c(capsys, tmp_path):
    (tmp_path / "model.py").write_text("raise KeyboardInterrupt")

    assert 130 == main(["model.py", "--hosts=2"])
    assert "interrupted" in capsys.readouterr().err


def test_without_torch(tmp_path):
    """An interpreter that has the runtime alone: the hint is a command."""
    code = (
        "import sys; sys.modules['torch'] = None;"
        " from smdist.modelparallel.planner.command import main;"
        " sys.exit(main(['model.py', '--hosts=2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert "torch is not installed" in done.stderr
    assert "pip install torch==2.13.0" in done.stderr


def test_from_the_sdk(capfd):
    """The whole way: catalogue, JSON, a process of its own, the plan's text and its errors."""
    done = sagemaker_dist(["plan", "model.py", "--instance-type=ml.g5.12xlarge"])
    said = capfd.readouterr()
    failed = sagemaker_dist(
        ["plan", "model.py", "--instance-type=ml.g5.12xlarge", "--state-bytes=4,4"]
    )

    assert 0 == done, said.err
    assert "note: 1 x 4 NVIDIA A10G: 20.16 GiB for a rank, 70 TFLOP/s" in said.err
    assert "Plan for Sequential on 4 ranks" in said.out
    assert "estimated for NVIDIA A10G" in " ".join(said.out.split())
    assert 2 == failed
    assert "sagemaker-dist: --state-bytes: '4,4' is not three numbers" in capfd.readouterr().err


KERAS = """
    import keras
    import numpy as np
    def model():
        inputs = keras.Input((64,))
        x = inputs
        for number in range(6):
            x = keras.layers.Dense(64, activation="relu", name=f"dense{number}")(x)
        made = keras.Model(inputs, keras.layers.Dense(256, name="head")(x), name="mlp")
        assert made.variables[0]._value is None  # no memory for weights
        return made
    def example():
        return np.zeros([16, 64], "float32")
    """


def test_a_model_of_keras_is_found(capfd, tmp_path):
    """The command plans, saves and draws it as a model of torch; torch is not imported."""
    (tmp_path / "keras_model.py").write_text(
        dedent(KERAS) + "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))"
    )
    arguments = [
        "--ranks-per-host=4",
        "--pipeline-parallel-degree=4",
        "--instance-type=ml.m5.large",
    ]
    status = sagemaker_dist(
        ["plan", "keras_model.py", *arguments, "--save=plan.json", "--plot=plan.svg"]
    )
    said = capfd.readouterr().out

    assert 0 == status
    assert "Plan for Functional on 4 ranks" in said
    assert "False" == said.splitlines()[-1]
    plan = Plan.load(tmp_path / "plan.json")
    assert 4 == plan.pipeline_parallel_degree
    assert {f"dense{number}" for number in range(6)} | {"head"} == set(plan.stage_of)
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.slow
def test_layers_of_keras_are_measured_with_the_threads_of_a_rank(capfd, tmp_path):
    """The cores of this machine, divided by the ranks of a host."""
    count = "tensorflow.config.threading.get_intra_op_parallelism_threads()"
    (tmp_path / "keras_model.py").write_text(
        dedent(KERAS).replace("assert made.variables[0]._value is None", "pass")
        + f"import atexit, tensorflow\natexit.register(lambda: print({count}))"
    )
    ranks = len(os.sched_getaffinity(0)) * 2
    arguments = [f"--ranks-per-host={ranks}", "--instance-type=local_process", "--measure"]
    status = sagemaker_dist(["plan", "keras_model.py", *arguments])
    said = capfd.readouterr().out

    assert 0 == status
    assert "1" == said.splitlines()[-1]


def test_wrong_models_and_examples_of_keras(capsys, tmp_path):
    """An example that is no batch, and a model that cannot be recorded, are refused by name."""
    (tmp_path / "keras_model.py").write_text(
        dedent(KERAS).replace('np.zeros([16, 64], "float32")', '"a batch"')
    )
    (tmp_path / "keras_unknown.py").write_text("import keras\n\ndef model():\n    return 3\n\n"
                                               "def example():\n    return 4\n")  # fmt: skip
    found = []
    for name in ("keras_model.py", "keras_unknown.py"):
        status = main([name, "--hosts=2", "--json"])
        found.append((status, json.loads(capsys.readouterr().out)["error"]["about"]))

    assert [(2, "example"), (2, "model")] == found


def test_a_calibration_sets_speeds(capsys, tmp_path):
    """A machine that is ten times as fast computes its step in a tenth of the time."""
    steps = []
    for speed in (1e9, 1e10):
        products = (ProductSpeed(dtype="float32", size=64, flops_per_second=speed),)
        messages = tuple(MessageTime(num_bytes=size, seconds=size / 1e15) for size in (1, 1000))
        facts = MachineFacts(
            processor="P", num_cores=1, memory_bytes=1, device="cpu", device_name="D",
            num_devices=1, num_threads=1,
        )  # fmt: skip
        measured = Calibration(
            date="2026-11-27", machine=facts, versions={}, products=products,
            memory_bytes_per_second=1e15, all_reduce=(), messages=messages, folders=(),
        )  # fmt: skip
        save(measured, tmp_path / "c.json")
        options = ["--ranks-per-host=2", "--pipeline-parallel-degree=2", "--device-memory=1GiB"]
        assert 0 == main(["model.py", *options, "--calibration=c.json", "--json"])
        steps.append(json.loads(capsys.readouterr().out)["forecast"]["step_seconds"])

    assert pytest.approx(10, rel=0.02) == steps[0] / steps[1]


@pytest.mark.parametrize("more", [["--calibration=none.json"], ["--calibration=c", "--measure"]])
def test_a_calibration_that_cannot_be_used_is_refused(capsys, more):
    assert 2 == main(["model.py", *FOUR, *more, "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["about"] in ("calibration", "path")
