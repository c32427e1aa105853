# SPDX-License-Identifier: Apache-2.0
"""The demo's own driver, unchanged: hosts as processes, hosts as containers, the same bits."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from jobs import DIGITS

pytestmark = pytest.mark.timeout(600, func_only=True)


def drive(instance_type, folder):
    """Run `demo.py INSTANCE_TYPE` as a user does; return the files of its model."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(DIGITS / "demo.py"), instance_type],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    model = re.search(r"The model is (.+)", done.stdout)
    assert model, done.stdout
    with tarfile.open(folder / Path(model[1])) as archive:
        files = (member for member in archive.getmembers() if member.isfile())
        return {member.name: archive.extractfile(member).read() for member in files}


def test_processes_and_containers_train_the_same_bits(image, tmp_path):
    """Two hosts with two ranks each end with byte for byte the same weights."""
    processes = drive("local_process", tmp_path / "processes")
    containers = drive("local", tmp_path / "containers")

    assert {"model.pt"} == set(processes)
    assert processes == containers
