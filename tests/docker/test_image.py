# SPDX-License-Identifier: Apache-2.0
"""The training image: what is in it, what is not, and how it starts."""

import pytest
from docker.errors import ContainerError

import sagemaker_dist
from sagemaker_dist.contract import hyperparameter_format
from sagemaker_dist.packaging import FRAMEWORKS, check_versions, default_tag, local_image

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
LARGEST_BYTES = 1_150_000_000


@pytest.fixture
def say(engine, image):
    """Runs a command in the image and returns what it prints."""

    def run(*command: str, **options) -> str:
        done = engine.containers.run(
            image.name, list(command), remove=True, network_mode="none", **options
        )
        return done.decode().strip()

    return run


def test_name_and_labels(engine, image):
    """Name and labels say which SDK and framework the image goes with."""
    check_versions(image)

    assert (default_tag("torch"),) == image.tags
    assert sagemaker_dist.__version__ == image.version
    assert str(hyperparameter_format.VERSION) == image.wire
    assert ("torch", FRAMEWORKS["torch"].default) == (image.framework, image.framework_version)
    assert image == local_image(engine, "torch")


def test_size(image):
    """The image stays below its bound."""
    print(f"{image.name}: {image.size_bytes / 1e6:.0f} MB")

    assert image.size_bytes <= LARGEST_BYTES


def test_starts_without_a_shell(engine, image):
    """Entry point and command are lists: what they name is process 1 and hears SIGTERM."""
    config = engine.images.get(image.name).attrs["Config"]

    assert ["smdist-init"] == config["Entrypoint"]
    assert ["train"] == config["Cmd"]
    assert "BASH_ENV=/opt/sagemaker_dist/bash_env.sh" in config["Env"]


def test_train_is_what_starts(engine, image):
    """`docker run image` and `docker run image train` come to the launcher, which wants a job."""
    for command in ([], ["train"]):
        with pytest.raises(ContainerError) as raised:
            engine.containers.run(image.name, command, remove=True, network_mode="none")

        assert "the job names no script" in str(raised.value)


def test_programs(say):
    """What SageMaker's SDKs call is on the PATH."""
    names = ["train", "smdist-init", "bash", "python3", "pip3", "sagemaker-dist"]
    found = say("bash", "-c", f"for name in {' '.join(names)}; do command -v $name; done")

    assert names == [line.rpartition("/")[2] for line in found.splitlines()]


@pytest.mark.parametrize("name", ["sshd", "mpirun", "gcc", "c++", "cmake", "ninja"])
def test_no_program_that_a_job_does_not_need(say, name):
    """Neither a compiler nor what SageMaker's MPI jobs start."""
    assert "none" == say("bash", "-c", f"command -v {name} || echo none")


def test_nothing_of_the_build_is_left(say):
    """No /opt/ml, wheel, cache or secret."""
    places = "/opt/ml /root/.cache /run/secrets"
    files = (
        "find / -xdev -name '*.whl' -size +8k -not -path '*/ensurepip/*'; find /mnt /tmp -type f"
    )

    assert "" == say("bash", "-c", f"for at in {places}; do ls -d $at 2>/dev/null; done; {files}")


def test_bash_env_is_readable_by_all(say):
    """Bash of any user reads it."""
    assert "644" == say("stat", "-c", "%a", "/opt/sagemaker_dist/bash_env.sh")


def test_any_user_runs_it(say):
    """A user who has no name in the image imports the backend and starts the launcher."""
    code = "import smdist.dataparallel.torch, torch; print(torch.__version__.partition('+')[0])"

    assert FRAMEWORKS["torch"].default == say("python3", "-c", code, user="12345:12345")
    assert "usage" in say("train", "--help", user="12345:12345")


def test_holds_what_it_names(say):
    """numpy and tqdm are there; every requirement is met."""
    assert "No broken requirements found." == say("pip3", "check")
    assert "ok" == say("python3", "-c", "import numpy, tqdm, boto3; print('ok')")
