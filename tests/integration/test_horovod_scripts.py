# SPDX-License-Identifier: Apache-2.0
"""Scripts written for Horovod run unchanged beside the package of its name, started as by MPI."""

from pathlib import Path

import pytest
from job_results import check_survivors, files_of_model
from jobs import ROOT

from sagemaker_dist import DataParallel, PyTorch, TensorFlow

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
SOURCE = Path(__file__).with_name("source") / "for_horovod"
COMPAT = ROOT / "container/compat/horovod"


@pytest.fixture
def compat(tmp_path):
    """Return a PYTHONPATH on which each interpreter does what installing the package does."""
    folder = tmp_path / "site"
    folder.mkdir()
    start = (COMPAT / "sagemaker_dist_horovod.pth").read_text()
    (folder / "sitecustomize.py").write_text(start)
    return f"{folder}:{COMPAT}"


@pytest.mark.parametrize(
    ("make", "script", "processes", "options"),
    [
        (PyTorch, "torch_mnist.py", 2, {"fp16-allreduce": "", "gradient-predivide-factor": 2.0}),
        (TensorFlow, "keras_mnist.py", 1, {}),
        (TensorFlow, "tf2_synthetic.py", 1, {}),
    ],
    ids=["torch", "keras", "tf2"],
)
def test_all_ranks_have_the_same_weights(tmp_path, compat, make, script, processes, options):
    """Two hosts; every rank writes what its script measures, and a digest.

    In containers the same scripts run with their own defaults.
    """
    estimator = make(
        entry_point=script,
        source_dir=str(SOURCE),
        instance_type="local_process",
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": processes}},  # as users write
        hyperparameters=options,
        output_path=(tmp_path / "output").as_uri(),
        environment={"PYTHONPATH": compat, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"},
    )
    estimator.fit()
    reports = {name: text.decode().split() for name, text in files_of_model(estimator).items()}

    size = 2 * processes

    assert [f"{rank}-of-{size}.txt" for rank in range(size)] == sorted(reports)
    assert 1 == len({digest for _, digest in reports.values()})
    # accuracy, of which chance is 0.1, or images a second
    assert all(float(measured) > 0.2 for measured, _ in reports.values())


def test_an_elastic_script_goes_on_with_the_hosts_that_are_left(tmp_path, compat):
    """Each sample of both epochs is in the committed state once; the loss goes on to fall.

    In containers the second of two hosts is lost.
    """
    num_hosts, killed = 3, 0
    estimator = PyTorch(
        entry_point="torch_elastic.py",
        source_dir=str(SOURCE),
        instance_type="local_process",
        instance_count=num_hosts,
        distribution=DataParallel(elastic_min=1, processes_per_host=1),
        hyperparameters={"killed": killed},
        output_path=(tmp_path / "output").as_uri(),
        environment={"PYTHONPATH": compat},
    )
    estimator.fit()

    check_survivors(estimator, num_hosts, killed)
