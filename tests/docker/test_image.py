# SPDX-License-Identifier: Apache-2.0
"""The training image: what is in it, what is not, and how it starts."""

import pytest

import sagemaker_dist
from sagemaker_dist.contract import wire
from sagemaker_dist.packaging import FRAMEWORKS, check_versions, default_tag

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
LARGEST_BYTES = 1_250_000_000


@pytest.fixture
def say(engine, image):
    """Runs a command in the image and returns what it prints."""

    def run(*command: str, **options) -> str:
        return engine.containers.run(image.name, list(command), remove=True, **options).decode()

    return run


def test_name_and_labels(image):
    """Name and labels say which SDK and framework the image goes with."""
    check_versions(image)

    assert (default_tag("torch"),) == image.tags
    assert sagemaker_dist.__version__ == image.version
    assert str(wire.VERSION) == image.wire
    assert ("torch", FRAMEWORKS["torch"].default) == (image.framework, image.framework_version)


def test_size(image):
    """The image stays below its bound."""
    print(f"{image.name}: {image.size_bytes / 1e6:.0f} MB")

    assert image.size_bytes <= LARGEST_BYTES
