# SPDX-License-Identifier: Apache-2.0
"""A stopped job's script hears of it, however SageMaker started the container."""

import shutil
import time
from pathlib import Path

import pytest
from boxes import running, said, status_of, until_there, write_base

from sagemaker_dist.contract import DataParallel

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
SOURCE = Path(__file__).parent / "source"
V3 = {
    "entrypoint": ["/bin/bash"],
    "command": [
        "-c",
        "chmod +x /opt/ml/input/data/sm_drivers/sm_train.sh"
        " && /opt/ml/input/data/sm_drivers/sm_train.sh",
    ],
}


@pytest.fixture
def base(tmp_path):
    """SageMaker's directory of one host, also with what the SDK v3 would send."""

    script = (SOURCE / "script/saves.py").read_text()

    def make(options=None):
        base = write_base(tmp_path / "ml", script, options=options)
        shutil.copytree(SOURCE / "sm_drivers", base / "input/data/sm_drivers")
        return base

    return make


@pytest.mark.parametrize(
    ("options", "start", "names"),
    [
        (None, {"command": "train"}, ["rank-none"]),
        (None, V3, ["rank-none"]),
        (DataParallel(processes_per_host=2), {"command": "train"}, ["rank-0", "rank-1"]),
        (
            DataParallel(processes_per_host=2),
            {"command": ["bash", "-c", "train; exit $?"]},
            ["rank-0"],
        ),
    ],
    ids=["train", "SDK v3", "ranks", "ranks below a shell"],
)
def test_stop_reaches_the_script(engine, image, base, options, start, names):
    """It saves, once, and the container ends with 143 right after; that is no failure."""
    folder = base(options)
    with running(engine, image.name, folder, **start) as container:
        for name in names:
            until_there(folder / f"model/{name}-ready", container)
        asked = time.monotonic()
        container.stop(timeout=60)
        seconds = time.monotonic() - asked

        assert 143 == status_of(container), said(container)
        assert seconds < 30  # SIGKILL comes after 60
        for name in names:
            assert (folder / f"model/{name}-saved").exists()
            assert 1 == said(container).count(f"{name} saves")
            assert f"{name} has saved" in said(container)
        assert not (folder / "output/failure").exists()


def test_bash_keeps_its_place_where_it_is_told_to(engine, image, base):
    """SMDIST_INIT=off: as process 1 it drops SIGTERM, and the script is killed without a word."""
    folder = base()
    choices = {**V3, "environment": {"SMDIST_INIT": "off"}}
    with running(engine, image.name, folder, **choices) as container:
        until_there(folder / "model/rank-none-ready", container)
        container.stop(timeout=1)

        assert 137 == status_of(container)
        assert not (folder / "model/rank-none-saved").exists()


def test_failure_under_sdk_v3_is_the_scripts(engine, image, base):
    """smdist-init changes neither the status nor the output of what it runs."""
    folder = base()
    (folder / "code/train.py").write_text("print('so far')\nraise SystemExit(7)")
    with running(engine, image.name, folder, **V3) as container:
        assert 7 == status_of(container)
        assert "so far" in said(container)
        assert "Training Execution failed.\n" == (folder / "output/failure").read_text()


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["no-such-command"], 127, "'no-such-command' cannot be run: the image has no such"),
        (["/etc/passwd"], 126, "'/etc/passwd' cannot be run: Permission denied"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (
            [
                "bash",
                "-c",
                "(sleep 0.1 &); sleep 0.5; grep -c State:.Z /proc/*/status | grep -v :0$",
            ],
            1,
            "",
        ),
    ],
    ids=["missing", "not executable", "killed", "orphans"],
)
def test_process_1_tells_how_its_command_ended(engine, image, tmp_path, command, status, text):
    """A shell's status; an orphan leaves no zombie."""
    with running(engine, image.name, tmp_path, command, user="12345") as container:
        assert status == status_of(container), said(container)
        assert text in said(container)
