# SPDX-License-Identifier: Apache-2.0
"""The README's examples run, and the documents show errors as they are."""

import json
import re
from pathlib import Path

import pytest

from sagemaker_dist import OptionErrors, PyTorch
from sagemaker_dist.packaging import default_tag

ROOT = Path(__file__).parents[3]
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}


def jobs():
    """Return the code of the README's two jobs: on SageMaker, and on this machine."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    sagemaker, local = (block for block in blocks if "estimator = " in block)
    return sagemaker, local


def changed(block, **places):
    """Return the code with its paths and names replaced by the test's."""
    for old, new in places.values():
        assert old in block
        block = block.replace(old, new)
    return block


@pytest.mark.filterwarnings("ignore::UserWarning")  # how gradients travel on its GPUs
def test_the_job_on_sagemaker(session, script):
    """Twelve lines or fewer request two hosts, the role and the pushed image."""
    ecr = session.boto_session.client("ecr")
    ecr.create_repository(repositoryName="sagemaker-dist")
    tag = default_tag("torch").partition(":")[2]
    manifest = json.dumps({**MANIFEST, "layers": []})
    ecr.put_image(repositoryName="sagemaker-dist", imageManifest=manifest, imageTag=tag)
    block, _ = jobs()
    code = changed(
        block,
        session=("PyTorch(\n", "PyTorch(\n    sagemaker_session=session,\n"),
        source=('"source"', repr(script())),
        wait=(".fit(", ".fit(wait=False, inputs="),
    )
    exec(code, {"session": session})
    (request,) = session.requests

    assert 12 >= len([line for line in block.splitlines() if line.strip()])
    assert "arn:aws:iam::123456789012:role/training" == request["RoleArn"]
    assert request["AlgorithmSpecification"]["TrainingImage"].endswith(f"/sagemaker-dist:{tag}")
    assert 2 == request["ResourceConfig"]["InstanceCount"]
    assert "ml.p4d.24xlarge" == request["ResourceConfig"]["InstanceType"]


def test_the_job_on_this_machine(script, data, tmp_path):
    """The job trains on both hosts and writes its model to the given directory."""
    source = script("base.joinpath('model', f'{host}.txt').touch()")
    _, block = jobs()
    code = changed(
        block,
        source=('"source"', repr(source)),
        output=("file:///home/me/output", tmp_path.joinpath("output").as_uri()),
        data=("file:///home/me/data", data),
    )
    exec(f"from sagemaker_dist import DataParallel, PyTorch\n{code}", {})

    assert 1 == len(list(tmp_path.glob("output/*/output/model.tar.gz")))


def test_documents_show_the_real_error(tmp_path):
    """The error with two faults in the documents is word for word what is raised."""
    (tmp_path / "train.py").touch()
    with pytest.raises(OptionErrors) as caught:
        PyTorch(
            entry_point="train.py",
            source_dir=str(tmp_path),
            instance_type="local_procces",
            instance_count=2,
            distribution={"smdit": {}},
        )

    assert f"OptionErrors: {caught.value}\n" in (ROOT / "docs/sagemaker_job.md").read_text()
