# SPDX-License-Identifier: Apache-2.0
"""A SageMaker base directory, launchers in it, and proof that nothing stays."""

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sagemaker_dist.contract import KEY, render


@dataclass
class Launched:
    """One `train` process and its output."""

    process: subprocess.Popen
    base: Path
    output: Path

    def wait(self, timeout=30):
        return self.process.wait(timeout)

    def said(self):
        return self.output.read_text(errors="replace")

    def failure(self):
        path = self.base / "output/failure"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def fields(self):
        """Return the fields beside the failure file."""
        return json.loads((self.base / "output/failure.json").read_text(encoding="utf-8"))


def until(condition, seconds=20):
    """Wait for a truth; its value is returned."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


def _marked(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SMDIST_TEST_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def _groups(host, groups):
    """Return the instance groups of resourceconfig.json."""
    return {
        "current_group_name": next(name for name, hosts in groups.items() if host in hosts),
        "instance_groups": [
            {"instance_group_name": name, "instance_type": "ml.c5.large", "hosts": hosts}
            for name, hosts in groups.items()
        ],
    }


@dataclass
class Stage:
    """One test's base directories and processes, all carrying one mark."""

    root: Path
    mark: str

    def base(
        self, script, *, name="base", host=None, hosts=None, groups=None, options=None,
        **hyperparameters,
    ):  # fmt: skip
        """A base directory as SageMaker writes it; `groups` has the hosts of each by its name."""
        base, source = self.root / name, self.root / f"{name}-source"
        folder = base / "input/config"
        folder.mkdir(parents=True)
        source.mkdir()
        (source / "train.py").write_text(script, encoding="utf-8")
        sent = {"sagemaker_program": "train.py", "sagemaker_submit_directory": f"file://{source}"}
        sent = {key: json.dumps(value) for key, value in (sent | hyperparameters).items()}
        if options:
            sent[KEY] = json.dumps(render(options))
        (folder / "hyperparameters.json").write_text(json.dumps(sent))
        if host:
            resources = {
                "current_host": host,
                "hosts": hosts or [host],
                "network_interface_name": "lo",
            }
            if groups:
                resources |= _groups(host, groups)
            (folder / "resourceconfig.json").write_text(json.dumps(resources))
        return base

    def train(self, base, **environ):
        """Start `python -m smdist.launch`."""
        return self.run(base, "-m", "smdist.launch", **environ)

    def run(self, base, *arguments, **environ):
        """Start Python under the mark."""
        output = self.root / f"{base.name}.log"
        own = {"SAGEMAKER_BASE_DIR": str(base), "SMDIST_TEST_MARK": self.mark}
        inherited = dict(os.environ)
        inherited.pop("OMP_NUM_THREADS", None)  # the launcher sets it
        with output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**inherited, **own, **environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return Launched(process, base, output)

    def processes(self):
        """Everything this test started that still runs."""
        return _marked(self.mark)


@pytest.fixture
def stage(tmp_path):
    """A stage that fails the test when a process outlives it."""
    stage = Stage(tmp_path, uuid.uuid4().hex)
    yield stage
    left = stage.processes()
    names = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()

    assert [] == names


@pytest.fixture(name="until")
def until_fixture():
    """Wait for a truth."""
    return until
