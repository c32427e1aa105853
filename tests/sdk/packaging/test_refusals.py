# SPDX-License-Identifier: Apache-2.0
"""Messages of Docker engines become errors with reason and hint."""

import pytest

from sagemaker_dist.packaging.docker_errors import refusal

HEARD = {
    'failed to create shim task: OCI runtime create failed: exec: "train": executable file not'
    " found in $PATH: unknown": "image mine:1 has no program `train`",
    "mkdir /var/lib/docker/overlay2/x: no space left on device": "/data/docker, is full",
    "No such image: mine:1": "docker pull mine:1",
    "exec /usr/bin/train: exec format error": "built for another processor",
    'could not select device driver "" with capabilities: [[gpu]]': "NVIDIA's container toolkit",
    "driver failed programming: Bind for 0.0.0.0:80 failed: port is already allocated": "port is",
    "could not find an available, non-overlapping IPv4 address pool": "docker network prune",
    "Mounts denied: The path /data is not shared from the host": "File sharing",
    'Conflict. The container name "/x" is already in use by container': "another job_name",
    "network with name sagemaker-dist-x already exists": "another job_name",
    "something that nobody has heard before": "something that nobody has heard before",
}


@pytest.mark.parametrize("said", HEARD)
def test_refusal(said):
    error = refusal("it did not start", OSError(said), image="mine:1", data_root="/data/docker")

    assert str(error).startswith("it did not start: ")
    assert HEARD[said] in str(error)
