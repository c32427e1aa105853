# SPDX-License-Identifier: Apache-2.0
"""Whole elastic jobs on three emulated hosts, one of which is lost in the middle of a step."""

import pytest
from job_results import check_survivors

from sagemaker_dist import DataParallel, PyTorch, TensorFlow

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


# test_horovod_scripts.py has the job in torch that loses the first of three hosts.
@pytest.mark.parametrize(
    ("make", "script", "num_hosts", "killed"),
    [
        (PyTorch, "elastic_torch.py", 2, 1),
        (TensorFlow, "elastic_keras.py", 3, 0),
        (TensorFlow, "elastic_keras.py", 2, 1),
    ],
)
def test_the_job_completes_with_the_hosts_that_are_left(
    source, tmp_path, make, script, num_hosts, killed
):
    """Each sample of both epochs is in the committed state once; the loss goes on to fall."""
    estimator = make(
        entry_point=script,
        source_dir=str(source),
        instance_type="local_process",
        instance_count=num_hosts,
        distribution=DataParallel(elastic_min=1, processes_per_host=1),
        hyperparameters={"killed": killed},
        output_path=(tmp_path / "output").as_uri(),
        environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    estimator.fit()

    check_survivors(estimator, num_hosts, killed)
