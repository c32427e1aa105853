# SPDX-License-Identifier: Apache-2.0
"""Every local job has a secret of its own, which only its folder and its hosts' trees have."""

import stat

import pytest

from sagemaker_dist.contract.job_secret import FILE
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree


@pytest.fixture
def created(request_for, script, tmp_path):
    """Return a function that creates a job's folder and the trees of its hosts."""
    script("")

    def create(name, instance_type):
        request = request_for(name)
        request["ResourceConfig"]["InstanceType"] = instance_type
        job, folder = plan_local_job(request), JobFolder(tmp_path / "jobs" / name)
        folder.create(request, job)
        trees = [HostTree(folder.hosts / host.label) for host in job.hosts]
        for host, tree in zip(job.hosts, trees, strict=True):
            tree.create(job, host, folder)
        return folder, trees

    return create


@pytest.mark.parametrize("instance_type", ["local_process", "local"])
def test_hosts_get_the_secret_in_a_private_file(created, instance_type):
    """Processes and containers alike; a container's tree is its /opt/ml, with the user's uid."""
    folder, trees = created("job", instance_type)
    files = [folder.path / "secret", *(tree.root / "input/config" / FILE for tree in trees)]

    assert {folder.secret()} == {file.read_bytes() for file in files}
    assert 64 == len(folder.secret())
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in files}
    assert 0o700 == stat.S_IMODE(folder.path.stat().st_mode)
    others = [file for file in folder.path.rglob("*") if file.is_file() and file not in files]
    assert not [file for file in others if folder.secret() in file.read_bytes()]


def test_no_two_jobs_share_a_secret(created):
    (first, _), (second, _) = created("one", "local_process"), created("two", "local_process")

    assert first.secret() != second.secret()


def test_the_secret_of_a_job_that_has_ended_is_removed(created):
    folder, _ = created("job", "local_process")
    folder.remove_secret()
    folder.remove_secret()

    assert not (folder.path / "secret").exists()
