# SPDX-License-Identifier: Apache-2.0
"""The training image of TensorFlow: what is in it, what is not, and a wheelhouse without it."""

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging import (
    FRAMEWORKS,
    ImageOptions,
    build_image,
    check_versions,
    default_tag,
    local_image,
)

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
LARGEST_BYTES = 1_850_000_000
ABSENT = "gcc c++ cmake ninja sshd mpirun"  # what a job does not need
SHOWN = f"""
for name in {ABSENT}; do command -v $name; done
ls -d /opt/ml /root/.cache /run/secrets 2>/dev/null
find / -xdev -name '*.whl' -size +8k -not -path '*/ensurepip/*'
find /mnt /tmp -type f
pip3 check
python3 -c 'import smdist.dataparallel.torch' 2>&1 | tail -1
"""
SUMS = """
import tensorflow as tf
import smdist.dataparallel.tensorflow as sdp
sdp.init()
print(tf.__version__, sdp.size(), sdp.oob_allreduce(tf.constant(3.0)).numpy())
"""


def test_name_labels_and_size(engine, tensorflow_image):
    """It fits this SDK, which finds it by the framework's name."""
    found = tensorflow_image
    check_versions(found)

    assert (default_tag("tensorflow"),) == found.tags
    assert ("tensorflow", FRAMEWORKS["tensorflow"].default) == (
        found.framework,
        found.framework_version,
    )
    assert found == local_image(engine, "tensorflow")
    assert found.size_bytes <= LARGEST_BYTES


def test_nothing_that_a_job_does_not_need(engine, tensorflow_image):
    """No compiler, /opt/ml, wheel, cache or torch; every requirement is met."""
    said = engine.containers.run(
        tensorflow_image.name, ["bash", "-c", SHOWN], remove=True, network_mode="none"
    )

    assert [
        "No broken requirements found.",
        "ModuleNotFoundError: No module named 'torch'",
    ] == said.decode().splitlines()


def test_any_user_sums(engine, tensorflow_image):
    """A user who has no name in the image loads the library of ops."""
    said = engine.containers.run(
        tensorflow_image.name,
        ["python3", "-c", SUMS],
        remove=True,
        network_mode="none",
        user="12345:12345",
    )

    version = FRAMEWORKS["tensorflow"].default
    assert f"{version} 1 3.0" == said.decode().splitlines()[-1]


def test_a_wheelhouse_without_the_framework(offline, tmp_path):
    """The error has the missing wheel, and the command that downloads it."""
    wheel = next(offline["wheelhouse"].glob("click-*.whl"))
    (tmp_path / wheel.name).hardlink_to(wheel)
    options = {**offline, "wheelhouse": tmp_path, "tag": "smdist-test-scratch:2"}
    with pytest.raises(SetupError) as raised:
        build_image(ImageOptions(framework="tensorflow", **options))

    wanted = f"tensorflow-cpu=={FRAMEWORKS['tensorflow'].default}"
    assert "missing_wheel" == raised.value.kind
    assert wanted in raised.value.why.split()
    assert f"'{wanted}'" in raised.value.hint
    assert "\n" not in str(raised.value)
