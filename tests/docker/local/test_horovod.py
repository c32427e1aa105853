# SPDX-License-Identifier: Apache-2.0
"""Scripts written for Horovod run unchanged in containers of images with a package of its name."""

import json
import shutil

import pytest
from job_results import files_of_model
from jobs import ROOT

from sagemaker_dist import DataParallel, PyTorch, TensorFlow

pytestmark = pytest.mark.timeout(400, func_only=True)
SOURCE = ROOT / "tests/integration/source/for_horovod"
COMPAT = ROOT / "container/compat/horovod"
PACKAGE = "sagemaker_dist_horovod"
SITE = "/usr/local/lib/python3.11/dist-packages/"


def by_mpi(processes):
    """Return the distribution as SageMaker's users write it."""
    return {"mpi": {"enabled": True, "processes_per_host": processes}}


@pytest.fixture(scope="module")
def with_horovod(engine, tmp_path_factory):
    """Makes images that also have the files of the package named horovod, and removes them.

    test_image_builds.py builds such an image with --compat: that takes a minute.
    """
    made, folder = [], tmp_path_factory.mktemp("horovod")
    shutil.copytree(COMPAT / PACKAGE, folder / "site" / PACKAGE)
    shutil.copy(COMPAT / f"{PACKAGE}.pth", folder / "site")

    def make(found):
        tag = f"smdist-test-horovod:{found.framework}"
        (folder / "Dockerfile").write_text(f"FROM {found.name}\nCOPY site {SITE}\n")
        engine.images.build(path=str(folder), tag=tag, forcerm=True)
        made.append(tag)
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

    def run(make, image_uri, script, distribution, **options):
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
        return files_of_model(estimator)

    return run


def check_reports(files, num_ranks):
    """Check that each rank has reported the same digest, and a result better than chance."""
    reports = {name: text.decode().split() for name, text in files.items()}

    assert [f"{rank}-of-{num_ranks}.txt" for rank in range(num_ranks)] == sorted(reports)
    assert 1 == len({digest for _, digest in reports.values()})
    # accuracy, of which chance is 0.1, or images a second
    assert all(float(measured) > 0.2 for measured, _ in reports.values())


def test_torch_in_containers(files_of_job, torch_horovod):
    """All ranks of both hosts have the same bits."""
    check_reports(files_of_job(PyTorch, torch_horovod, "torch_mnist.py", by_mpi(2)), 4)


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
    """One rank on each host, since TensorFlow takes 10 CPU seconds to start."""
    check_reports(files_of_job(TensorFlow, tensorflow_horovod, script, by_mpi(1)), 2)
