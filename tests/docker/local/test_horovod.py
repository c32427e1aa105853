# SPDX-License-Identifier: Apache-2.0
"""Scripts written for Horovod run unchanged in containers of images with a package of its name."""

import json
import tarfile

import pytest
from jobs import ROOT

from sagemaker_dist import DataParallel, PyTorch, TensorFlow
from sagemaker_dist.packaging import ImageOptions, build_image

pytestmark = pytest.mark.timeout(300, func_only=True)
SOURCE = ROOT / "tests/integration/source/for_horovod"
BY_MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}  # as SageMaker's users write it
NUM_RANKS = 4  # two hosts with two ranks each


@pytest.fixture(scope="module")
def with_horovod(engine, offline):
    """Makes images with the package named horovod from others, and removes them at the end."""
    made = []

    def make(found):
        tag = f"smdist-test-horovod:{found.framework}"
        options = {**offline, "base_image": found.name, "compat": "horovod", "tag": tag}
        made.append(build_image(ImageOptions(framework=found.framework, **options)).name)
        return tag

    yield make
    for tag in made:
        engine.images.remove(tag, force=True)


@pytest.fixture(scope="module")
def torch_horovod(with_horovod, image):
    return with_horovod(image)


@pytest.fixture(scope="module")
def tensorflow_horovod(with_horovod, tensorflow_image):
    return with_horovod(tensorflow_image)


@pytest.fixture
def files_of_job(tmp_path):
    """Runs a script on two hosts and returns the files that its ranks write."""

    def run(make, image_uri, script, distribution=BY_MPI, **options):
        estimator = make(
            entry_point=script,
            source_dir=str(SOURCE),
            image_uri=image_uri,
            instance_type="local",
            instance_count=2,
            distribution=distribution,
            hyperparameters=options,
            output_path=(tmp_path / "output").as_uri(),
            environment={"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"},
        )
        estimator.fit()
        with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
            members = [member for member in tar.getmembers() if member.isfile()]
            return {member.name: tar.extractfile(member).read().decode() for member in members}

    return run


def check_reports(files):
    """Check that each rank has reported the same digest, and a result better than chance."""
    reports = {name: text.split() for name, text in files.items()}

    assert [f"{rank}-of-{NUM_RANKS}.txt" for rank in range(NUM_RANKS)] == sorted(reports)
    assert 1 == len({digest for _, digest in reports.values()})
    # accuracy, of which chance is 0.1, or images a second
    assert all(float(measured) > 0.2 for measured, _ in reports.values())


def test_torch_in_containers(files_of_job, torch_horovod):
    """All ranks of both hosts have the same bits."""
    check_reports(files_of_job(PyTorch, torch_horovod, "torch_mnist.py"))


def test_elastic_torch_in_containers(files_of_job, torch_horovod):
    """A rank of the second host is killed: both ranks of the first go on, with the same bits."""
    distribution = DataParallel(elastic_min=1, processes_per_host=2)
    files = files_of_job(PyTorch, torch_horovod, "torch_elastic.py", distribution, killed=3)
    one, other = (json.loads(files[name]) for name in ("0.json", "1.json"))

    assert 2 == len(files)
    assert one == {**other, "losses": one["losses"]}
    assert 2 == one["size"]
    assert [[epoch, i] for epoch in range(2) for i in range(240)] == sorted(one["seen"])
    assert one["losses"][-1] < 0.1 * one["losses"][0]


@pytest.mark.parametrize("script", ["keras_mnist.py", "tf2_synthetic.py"])
def test_tensorflow_in_containers(files_of_job, tensorflow_horovod, script):
    check_reports(files_of_job(TensorFlow, tensorflow_horovod, script))
