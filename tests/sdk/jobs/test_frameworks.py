# SPDX-License-Identifier: Apache-2.0
"""A script that imports another framework than the job's gives a warning."""

import pytest

from sagemaker_dist import TrainingJob


@pytest.mark.parametrize(
    ("script", "framework", "count"),
    [
        ("import tensorflow as tf\n", "torch", 1),
        ("def main():\n    import smdist.dataparallel.tensorflow.keras as hvd\n", "torch", 1),
        ("import tensorflow as tf\n", "tensorflow", 0),
        ("import tensorflow as tf\nimport torch\n", "torch", 0),
        ("# import tensorflow\nimport tensorflow_of_mine\n", "torch", 0),
    ],
)
@pytest.mark.parametrize("is_uri", [False, True])
def test_a_script_of_tensorflow_needs_its_framework(tmp_path, script, framework, count, is_uri):
    (tmp_path / "train.py").write_text(script)
    warnings = TrainingJob(
        entry_point="train.py",
        source_dir=tmp_path.as_uri() if is_uri else tmp_path,
        framework=framework,
        instance_type="local_process",
    ).warnings()

    assert count == len(warnings)
    assert all("Set framework to 'tensorflow'" in warning for warning in warnings)


def test_a_script_that_cannot_be_read_is_not_guessed_about():
    there = {"source_dir": "s3://bucket/code.tar.gz", "role": "training"}

    assert (
        []
        == TrainingJob(
            entry_point="train.py", instance_type="ml.c5.9xlarge", instance_count=2, **there
        ).warnings()
    )
