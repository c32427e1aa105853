# SPDX-License-Identifier: Apache-2.0
"""Whether an image goes with this SDK."""

import pytest

import sagemaker_dist
from sagemaker_dist.contract import wire
from sagemaker_dist.errors import SkewError
from sagemaker_dist.packaging import ImageFacts, check_versions, is_ours
from sagemaker_dist.packaging.facts import versions_in


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
    """Runtime and SDK of one version go together."""
    check_versions(facts(version=sagemaker_dist.__version__, wire=str(wire.VERSION)))


def test_an_image_of_ones_own_passes():
    """An image without our labels is the user's."""
    check_versions(facts())


def test_another_version():
    """The error names both versions."""
    with pytest.raises(SkewError, match="holds sagemaker-dist-runtime") as raised:
        check_versions(facts(version="9.9.9", wire=str(wire.VERSION)))

    assert f"sagemaker-dist {sagemaker_dist.__version__} is installed here" == raised.value.why


def test_another_wire():
    """An image that reads another wire is refused."""
    with pytest.raises(SkewError, match="reads version 99 of the wire"):
        check_versions(facts(version=sagemaker_dist.__version__, wire="99"))


def test_versions_in_tags():
    """Versions of other frameworks, and tags that are none of ours, do not count."""
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
    assert expected == is_ours(image)
