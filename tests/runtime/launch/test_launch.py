# SPDX-License-Identifier: Apache-2.0
"""`train` from SageMaker's files to an exit status, one plain process at a time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sagemaker_dist.contract import DataParallel

SHOW = """
import json, os, sys
seen = {"argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "env": dict(os.environ)}
json.dump(seen, open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w"))
"""


def test_script_sees_what_it_knows_from_sagemaker(stage):
    """Arguments and environment arrive unchanged; no world without distribution."""
    text = 'it\'s "q"\n$HOME ü'
    base = stage.base(SHOW, text=text, n=3)
    run = stage.train(base)

    assert 0 == run.wait()
    seen = json.loads((base / "model/seen.json").read_text())

    assert [str(base / "code/train.py"), "-n", "3", "--text", text] == seen["argv"]
    assert str(base / "code") == seen["cwd"]
    assert str(base / "code") in seen["path"][1:]
    assert text == seen["env"]["SM_HP_TEXT"]
    assert '["127.0.0.1"]' == seen["env"]["SM_HOSTS"]
    assert "algo-1" == seen["env"]["SMDIST_HOST_LABEL"]
    assert "RANK" not in seen["env"]
    assert run.failure() is None
    assert "[algo-1] succeeded after" in run.said()


@pytest.mark.parametrize(
    ("script", "status", "failure"),
    [
        ("raise ValueError('boom')", 1, "algo-1 exited with code 1: ValueError: boom (train.py:1"),
        ("import sys; sys.exit(7)", 7, "algo-1 exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "algo-1 was killed by SIGKILL: "),
        ("raise ValueError('ü' * 5000)", 1, "algo-1 exited with code 1: ValueError: ü"),
    ],
)
def test_failure_is_reported(stage, script, status, failure):
    """Exit status and failure file are the script's own."""
    run = stage.train(stage.base(script))

    assert status == run.wait()
    assert run.failure().startswith(failure)
    assert 1024 >= len(run.failure())


def test_scripts_own_failure_file_is_kept(stage):
    script = (
        "import os, sys\n"
        "path = os.environ['SM_OUTPUT_FAILURE']\n"
        "os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "open(path, 'w').write('my own words')\nsys.exit(3)"
    )
    run = stage.train(stage.base(script))

    assert 3 == run.wait()
    assert "my own words" == run.failure()


@pytest.mark.parametrize(
    ("hyperparameters", "about"),
    [
        ({"sagemaker_program": "tran.py"}, "sagemaker_program"),
        ({"sagemaker_mpi_enabled": "maybe"}, "sagemaker_mpi_enabled"),
        ({"sagemaker_mpi_enabled": True, "mp_parameters": {"a": 1}}, "mp_parameters.a"),
        ({"mp_parameters": {"partitions": 2}}, "pipeline_parallel_degree"),
        ({"sagemaker_submit_directory": "/not/there"}, "sagemaker_submit_directory"),
        ({"x": "a\0b"}, "hyperparameters.x"),
    ],
)
def test_what_cannot_start_is_one_sentence(stage, hyperparameters, about):
    """Expected errors print no traceback and are the reason of the failure."""
    run = stage.train(stage.base("", **hyperparameters))

    assert 1 == run.wait()
    assert about == run.fields()["about"]
    assert run.failure() in run.said()
    assert "Traceback" not in run.said()


def test_weights_for_other_hosts_start_nothing(stage):
    """The launcher counts too: SageMaker's plain API knows nothing of our options."""
    options = DataParallel(shard_weights=(1, 2))
    run = stage.train(stage.base("", host="127.0.0.1", options=options))

    assert 1 == run.wait()
    assert "shard_weights" == run.fields()["about"]
    assert "Traceback" not in run.said()


def test_modules_of_the_user_do_not_stand_in_for_ours(stage):
    """A file named as one of the standard library hurts at most its own script."""
    base = stage.base("import os\nos.write(1, b'fine')")
    for name in ("selectors", "subprocess", "smdist", "psutil"):
        (stage.root / f"base-source/{name}.py").write_text("raise ImportError('shadowed')")
    run = stage.train(base)

    assert 0 == run.wait()
    assert "[algo-1] fine" in run.said()


def test_stop_while_waiting_for_hosts(stage, until):
    """A signal before any rank runs ends the launcher at once."""
    base = stage.base("", host="algo-1.invalid", hosts=["algo-1.invalid", "algo-2.invalid"])
    run = stage.train(base)
    until(lambda: (base / "code/train.py").exists())
    time.sleep(0.2)
    run.process.terminate()

    assert 143 == run.wait(5)
    assert run.failure() is None


def test_stop_reaches_the_script(stage, until):
    """From SIGTERM at the launcher to the handler of the script in under a second."""
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    print('signal at', time.time())\n    sys.exit(0)\n"
        "signal.signal(15, save)\nprint('ready')\ntime.sleep(60)"
    )
    run = stage.train(stage.base(script))
    until(lambda: "ready\n" in run.said())
    sent = time.time()
    os.kill(run.process.pid, signal.SIGTERM)

    assert 143 == run.wait(10)
    heard = next(line for line in run.said().splitlines() if "signal at" in line)

    assert float(heard.split()[-1]) - sent < 1.0
    assert run.failure() is None


def test_nothing_stays_in_the_temporary_directory(stage, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    run = stage.train(stage.base("raise ValueError"), TMPDIR=str(folder))

    assert 1 == run.wait()
    assert [] == list(folder.iterdir())


def test_guards_of_a_killed_launcher_remove_its_folder(stage, tmp_path, until):
    """The launcher cannot: its guard ends the script, and removes what both have written."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    run = stage.train(
        stage.base("import time\nprint('ready', flush=True)\ntime.sleep(60)"), TMPDIR=str(folder)
    )
    until(lambda: "ready\n" in run.said())
    assert [] != list(folder.iterdir())
    run.process.kill()

    assert -9 == run.wait()
    until(lambda: not stage.processes())
    assert [] == list(folder.iterdir())


def test_a_killed_guard_leaves_nothing(stage, tmp_path, until):
    folder = tmp_path / "tmp"
    folder.mkdir()
    script = "import os, time\nprint('ready', flush=True)\nos.kill(os.getppid(), 9)\ntime.sleep(60)"
    run = stage.train(stage.base(script), TMPDIR=str(folder))

    assert 137 == run.wait()
    assert [] == list(folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "/opt/ml/input/config"),
        (["serve"], 2, "invalid choice: 'serve'"),
        (["train"], 1, "the job names no script"),
        ([], 1, "the job names no script"),
    ],
)
def test_train_takes_what_sagemaker_passes_and_nothing_else(tmp_path, arguments, status, text):
    """`docker run <image> train` reaches an entry point as an argument."""
    done = subprocess.run(
        [sys.executable, "-m", "smdist.launch", *arguments],
        env={**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert status == done.returncode
    assert text in done.stdout + done.stderr


def test_nobody_reads_and_the_script_still_hears_the_signal(stage, until):
    """Output that blocks keeps neither a signal nor a deadline."""
    script = (
        "import os, signal, sys, time\n"
        "model = os.environ['SM_MODEL_DIR']\n"
        "def save(*_):\n    open(f'{model}/at', 'w').write(str(time.time()))\n    os._exit(0)\n"
        "signal.signal(15, save)\nopen(f'{model}/ready', 'w').close()\n"
        "while True:\n    os.write(1, b'x' * 99 + b'\\n')\n"
    )
    base = stage.base(script)
    os.mkfifo(stage.root / "base.log")
    reader = os.open(stage.root / "base.log", os.O_RDONLY | os.O_NONBLOCK)
    run = stage.train(base)
    until((base / "model/ready").exists)
    time.sleep(1.0)  # every pipe and queue is full by now
    sent = time.time()
    run.process.terminate()
    until(lambda: (base / "model/at").exists() and (base / "model/at").read_text(), 5)

    assert float((base / "model/at").read_text()) - sent < 2.0
    assert 143 == run.wait(15)
    os.close(reader)


def test_nobody_reads_and_a_stubborn_script_is_killed(stage, until):
    script = (
        "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SM_MODEL_DIR'] + '/ready', 'w').close()\n"
        "while True:\n    os.write(2, b'x' * 99 + b'\\n')\n"
    )
    base = stage.base(script)
    os.mkfifo(stage.root / "base.log")
    reader = os.open(stage.root / "base.log", os.O_RDONLY | os.O_NONBLOCK)
    run = stage.train(base, SMDIST_STOP_SECONDS="1")
    until((base / "model/ready").exists)
    time.sleep(0.5)
    run.process.terminate()

    assert 143 == run.wait(10)
    os.close(reader)


def test_a_long_temporary_directory_holds_the_socket(stage, tmp_path):
    """The name of a socket has 107 bytes; a cluster's TMPDIR may have more."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    run = stage.train(stage.base("print('fine')"), TMPDIR=str(folder))

    assert 0 == run.wait(), run.said()
    assert "[algo-1] fine" in run.said()
