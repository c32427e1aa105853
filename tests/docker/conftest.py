# SPDX-License-Identifier: Apache-2.0
"""A real engine, the sagemaker-dist image in it, and nothing left behind.

.ci/docker makes what these take: the images smdist-test-base and smdist-test-build, and
build/wheelhouse. With SMDIST_REQUIRE_DOCKER=1 their absence is a failure.
"""

import os
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import ImageOptions, build_image
from sagemaker_dist.packaging.docker_engine import connect

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / "build" / "wheelhouse"
BASE, BUILD = "smdist-test-base", "smdist-test-build"
BRIDGE = Path("/sys/class/net/docker0")
OTHERS_SECONDS = 20  # other work on the same engine may come and go


def missing(what: str) -> NoReturn:
    """Skip, or fail where Docker is required."""
    if os.environ.get("SMDIST_REQUIRE_DOCKER") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session", name="missing")
def _missing():
    """For fixtures of single files, whose tools are as necessary."""
    return missing


@pytest.fixture(scope="session")
def engine():
    """A client of this machine's Docker engine."""
    try:
        client = connect()
    except SetupError as error:
        missing(str(error))
    yield client
    client.close()


@pytest.fixture(scope="session")
def offline(engine):
    """What an offline build on this machine takes."""
    absent = [name for name in (BASE, BUILD) if not engine.images.list(name=name)]
    if absent or not (WHEELHOUSE / ".done").exists():
        missing(f".ci/docker has not made {', '.join(absent) or WHEELHOUSE}")
    return {"base_image": BASE, "build_image": BUILD, "wheelhouse": WHEELHOUSE, "offline": True}


@pytest.fixture(scope="session")
def image(offline):
    """The torch image; what did not change since it was last built is not built again."""
    return build_image(ImageOptions(**offline))


@pytest.fixture(scope="session")
def tensorflow_image(offline):
    """The TensorFlow image."""
    return build_image(ImageOptions(framework="tensorflow", **offline))


@pytest.fixture(autouse=True)
def _nothing_left_behind(engine):
    """No test leaves a container, network or volume that was not there, or takes one away."""
    before, is_bridged = _things(engine), BRIDGE.exists()
    yield
    deadline = monotonic() + OTHERS_SECONDS
    while (left := _things(engine) - before) and monotonic() < deadline:
        sleep(0.5)

    assert set() == left
    assert is_bridged == BRIDGE.exists(), (
        "docker0 is gone: a second engine with --bridge=none removes the first one's;"
        " start it in a network namespace of its own: unshare --net dockerd …"
    )


def _things(engine) -> set[str]:
    containers = {
        f"container {found.name}" for found in engine.containers.list(all=True, ignore_removed=True)
    }
    networks = {f"network {found.name}" for found in engine.networks.list()}
    volumes = {f"volume {found.name}" for found in engine.volumes.list()}
    return containers | networks | volumes
