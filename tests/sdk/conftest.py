# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: a home directory per test, and a launcher that runs the test's script."""

import os
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from botocore.loaders import JSONFileLoader, Loader

from sagemaker_dist.runners import LocalRunner

LAUNCHER = """
import json, os, pathlib, runpy, sys
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
hyperparameters = json.loads((base / "input/config/hyperparameters.json").read_text())
source = json.loads(hyperparameters["sagemaker_submit_directory"])
script = pathlib.Path(source, json.loads(hyperparameters["sagemaker_program"]))
sys.stdout.reconfigure(line_buffering=True)
sys.path.insert(0, source)
runpy.run_path(str(script), {"base": base, "host": base.name}, "__main__")
"""


@pytest.fixture(autouse=True, scope="session")
def _services_are_read_once():
    """Cache botocore's service descriptions, megabytes of JSON, and the list of their folders.

    botocore reads both anew for each session.
    """
    read = cache(JSONFileLoader().load_file)
    search = Loader.list_available_services

    @cache
    def listed(type_name, *folders):
        loader = Loader(include_default_search_paths=False)
        loader.search_paths[:] = folders
        return search(loader, type_name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        patch.setattr(
            Loader,
            "list_available_services",
            lambda loader, type_name: list(listed(type_name, *loader.search_paths)),
        )
        yield


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Keep tests from reading or writing the user's home, credentials and configuration."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """Install a stub runtime whose launcher runs the entry point, with `base` and `host`
    defined.
    """
    package = tmp_path / "runtime" / "smdist" / "launch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(LAUNCHER)
    monkeypatch.syspath_prepend(str(package.parents[1]))
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parents[1]), str(root)]))
    return package.parents[1]


@pytest.fixture
def script(tmp_path):
    """Return a function that writes src/train.py, which every emulated host runs."""
    folder = tmp_path / "src"
    folder.mkdir()

    def write(text: str = "", name: str = "train.py") -> str:
        (folder / name).write_text(dedent(text))
        return str(folder)

    write()
    return write


@pytest.fixture
def data(tmp_path):
    """Return the file:// URI of a directory with one file."""
    folder = tmp_path / "my data"
    folder.mkdir()
    (folder / "numbers.txt").write_text("1 2 3")
    return folder.as_uri()


@pytest.fixture
def runner(tmp_path):
    return LocalRunner(root=tmp_path / "jobs")


@pytest.fixture
def request_for(tmp_path, script):
    """Return a function that builds the request of a job that runs src/train.py."""

    def build(name: str = "job", hosts: int = 2, **more) -> dict:
        return {
            "TrainingJobName": name,
            "RoleArn": "role",
            "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": "image"},
            "HyperParameters": {
                "sagemaker_submit_directory": f'"file://{tmp_path}/src"',
                "sagemaker_program": '"train.py"',
            },
            "ResourceConfig": {
                "InstanceType": "local_process",
                "InstanceCount": hosts,
                "VolumeSizeInGB": 30,
            },
            "OutputDataConfig": {"S3OutputPath": ""},
            "StoppingCondition": {"MaxRuntimeInSeconds": 60},
            **more,
        }

    return build


@pytest.fixture
def driver(tmp_path):
    """Return a function that starts a Python program in a session of its own, as a terminal
    does.
    """
    import subprocess

    started = []

    def start(text: str, *arguments: str) -> subprocess.Popen:
        program = tmp_path / f"driver{len(started)}.py"
        program.write_text(dedent(text))
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
