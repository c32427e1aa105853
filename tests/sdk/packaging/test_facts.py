# SPDX-License-Identifier: Apache-2.0
"""Check that an image works with this SDK, and lookup of local images."""

from types import SimpleNamespace

import pytest
from docker.errors import ImageNotFound

import sagemaker_dist
from sagemaker_dist.contract import hyperparameter_format
from sagemaker_dist.errors import SetupError, SkewError
from sagemaker_dist.packaging import (
    ImageFacts,
    check_versions,
    default_tag,
    inspect_image,
    is_sagemaker_dist_image,
    local_image,
)
from sagemaker_dist.packaging.image_facts import versions_in


def facts(**labels: str) -> ImageFacts:
    return ImageFacts(
        name="mine:1",
        id="sha256:1",
        tags=("mine:1",),
        digests=(),
        size_bytes=1,
        architecture="amd64",
        labels={f"sagemaker-dist.{name}": value for name, value in labels.items()},
    )


def test_same_versions_pass():
    """Runtime and SDK of the same version pass."""
    check_versions(
        facts(version=sagemaker_dist.__version__, wire=str(hyperparameter_format.VERSION))
    )


def test_an_image_of_ones_own_passes():
    """An image without sagemaker-dist's labels passes."""
    check_versions(facts())


def test_another_version():
    """The error names both versions, and the command that builds the image with its framework."""
    with pytest.raises(SkewError) as raised:
        check_versions(facts(version="9.9.9", wire="1", framework="tensorflow"))

    assert "skew" == raised.value.kind
    assert (
        "the image 'mine:1' has sagemaker-dist-runtime 9.9.9:"
        f" sagemaker-dist {sagemaker_dist.__version__} is installed here."
        " Run: sagemaker-dist image build --framework tensorflow, or install sagemaker-dist 9.9.9."
    ) == str(raised.value)


def test_another_wire():
    """An image that reads another hyperparameter format is refused."""
    with pytest.raises(SkewError) as raised:
        check_versions(facts(version=sagemaker_dist.__version__, wire="99"))

    assert "hyperparameter_format" == raised.value.kind
    assert "99" in raised.value.what.split()


def command_of(error):
    """Return the command that an error advises to run."""
    return error.hint.removeprefix("Run: ").partition(",")[0]


@pytest.fixture
def empty_engine():
    """Return a client of an engine without images."""

    def get(name):
        raise ImageNotFound(name)

    return SimpleNamespace(images=SimpleNamespace(get=get, list=lambda name: []))


@pytest.mark.parametrize(
    ("image", "command"),
    [
        (default_tag("tensorflow"), "image build --framework tensorflow"),
        (default_tag("torch"), "image build --framework torch"),
        ("there/sagemaker-dist:9-tensorflow", "image build --framework tensorflow --tag {image}"),
        ("mine:1", "image build --tag {image}"),
    ],
)
def test_a_missing_image_is_built_with_its_framework(empty_engine, image, command):
    with pytest.raises(SetupError) as raised:
        inspect_image(image, client=empty_engine)

    assert ((), "not_found") == (raised.value.about, raised.value.kind)
    assert f"sagemaker-dist {command.format(image=image)}" == command_of(raised.value)


def test_a_job_without_an_image_names_the_framework_to_build(empty_engine):
    with pytest.raises(SetupError) as raised:
        local_image(empty_engine, "tensorflow")

    assert (("image_uri",), "not_found") == (raised.value.about, raised.value.kind)
    assert "sagemaker-dist image build --framework tensorflow" == command_of(raised.value)


def test_versions_in_tags():
    """Tags of other frameworks and other tags are ignored."""
    tags = iter(["0.2.0-torch", "latest", "0.1.0-torch", "0.3.0-tensorflow"])

    assert ["0.1.0", "0.2.0"] == versions_in(tags, "torch")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("sagemaker-dist:0.1.0-torch", True),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:mine", True),
        ("localhost:5000/team/sagemaker-dist@sha256:0", True),
        ("localhost:5000/sagemaker-distant:1", False),
        ("sagemaker-dist.example.com/mine:1", False),
        (None, False),
        (object(), False),
    ],
)
def test_our_images_are_known_by_their_repository(image, expected):
    assert expected == is_sagemaker_dist_image(image)
