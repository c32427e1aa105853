# SPDX-License-Identifier: Apache-2.0
"""What keeps ranks from starting is one sentence with a hint, before torchrun runs."""

import os
import socket
import subprocess
import time
import venv
from pathlib import Path

import psutil
import pytest
from error_fields import fields_of
from ports import free_port

import sagemaker_dist
import smdist
from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.errors import LaunchError
from smdist.launch.readiness import require_framework, require_port


@pytest.fixture(params=["0.0.0.0", "127.0.0.1"])
def taken(request):
    """A port that this process listens on."""
    with socket.create_server((request.param, 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(params=["127.0.0.2", "::1"])
def taken_elsewhere(request):
    """A port that this process listens on, at an address that no host of the job has."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, free_port("")), family=family) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_named_with_its_owner(taken):
    """Whichever address the other listens at."""
    with pytest.raises(LaunchError) as caught:
        require_port(taken, "algo-1")

    assert [("SMDIST_MASTER_PORT", "conflict")] == fields_of(caught.value)
    assert f"(process {os.getpid()})" in caught.value.why


def test_one_address_is_enough(taken_elsewhere):
    """A port that is taken at another address is free; it is not for a check of all addresses."""
    require_port(taken_elsewhere, "algo-1", "127.0.0.1")
    with pytest.raises(LaunchError):
        require_port(taken_elsewhere, "algo-1")


def test_a_free_port_stays_free():
    """The check can be repeated, also right after a connection to the port."""
    port = free_port()
    address = ("127.0.0.1", port)
    with socket.create_server(address) as server, socket.create_connection(address):
        server.accept()[0].close()
    require_port(port, "algo-1")
    require_port(port, "algo-1")


def test_the_launcher_fails_at_once(stage, taken):
    """Not after the ten minutes that ranks wait for each other."""
    base = stage.base("", host="127.0.0.1", options=DataParallel(processes_per_host=1))
    start = time.monotonic()
    run = stage.train(base, SMDIST_MASTER_PORT=str(taken))

    assert 1 == run.wait(20)
    assert time.monotonic() - start < 5.0
    assert ("SMDIST_MASTER_PORT", "conflict") == (run.fields()["about"], run.fields()["kind"])
    assert "Traceback" not in run.said()


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory):
    """An environment that holds the launcher and no framework, as a TensorFlow image's."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for package in (smdist, sagemaker_dist, psutil):
        source = Path(package.__file__).parent
        (packages / source.name).symlink_to(source)
    return folder / "bin/python"


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        (None, "neither torch nor tensorflow is installed in this image. Use an image with torch"),
        ("tensorflow", "tensorflow is not installed in this image. Use an image with tensorflow"),
    ],
)
def test_a_framework_is_required_before_ranks_start(stage, python_without_torch, framework, text):
    """One sentence instead of runpy's traceback."""
    document = render(DataParallel(processes_per_host=1), framework)
    base = stage.base("", host="127.0.0.1", **{KEY: document})
    done = subprocess.run(
        [python_without_torch, "-m", "smdist.launch"],
        env={"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(base)},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert 1 == done.returncode
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_without_options_no_framework_is_needed(stage, python_without_torch):
    base = stage.base("import os\nos.write(1, b'fine')")
    done = subprocess.run(
        [python_without_torch, "-m", "smdist.launch"],
        env={"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(base)},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert 0 == done.returncode
    assert "[algo-1] fine" in done.stdout


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_framework_that_requirements_brought_counts(tmp_path, framework):
    """The launcher itself started before it was there."""
    (tmp_path / f"{framework}.py").write_text("")

    assert framework == require_framework(framework, {"PYTHONPATH": str(tmp_path)})


def test_torch_comes_first_where_nobody_says(tmp_path):
    for name in ("torch", "tensorflow"):
        (tmp_path / f"{name}.py").write_text("")

    assert "torch" == require_framework(None, {"PYTHONPATH": str(tmp_path)})
