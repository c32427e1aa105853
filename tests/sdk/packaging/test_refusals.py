# SPDX-License-Identifier: Apache-2.0
"""Messages of Docker engines become errors with kind, reason and hint."""

import pytest

from sagemaker_dist.packaging.docker_errors import refusal


def refused(message):
    return refusal("WHAT", OSError(message), image="mine:1", data_root="/data/docker")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            'failed to create shim task: OCI runtime create failed: exec: "train": executable file'
            " not found in $PATH: unknown",
            "missing_train",
        ),
        (
            'OCI runtime create failed: exec: "/x": stat /x: no such file or directory: unknown',
            "missing_program",
        ),
        ("mkdir /var/lib/docker/overlay2/x: no space left on device", "disk_full"),
        ("No such image: mine:1", "not_found"),
        ("exec /usr/bin/train: exec format error", "wrong_processor"),
        ('could not select device driver "" with capabilities: [[gpu]]', "no_gpus"),
        (
            "driver failed programming: Bind for 0.0.0.0:80 failed: port is already allocated",
            "port_in_use",
        ),
        ("could not find an available, non-overlapping IPv4 address pool", "no_addresses"),
        ("Mounts denied: The path /data is not shared from the host", "unshared_directory"),
        ('Conflict. The container name "/x" is already in use by container', "name_in_use"),
        ("network with name sagemaker-dist-x already exists", "name_in_use"),
        ("something that nobody has heard before", "refused"),
    ],
)
def test_kind(message, kind):
    error = refused(message)

    assert ("WHAT", kind) == (error.what, error.kind)


def test_full_disk():
    """The error names the directory of the engine, not a directory of the user."""
    assert (
        "WHAT: the disk with the engine's images and containers, /data/docker, is full."
        " Free space: docker system df, docker system prune."
    ) == str(refused("mkdir /var/lib/docker/overlay2/x: no space left on device"))


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ('exec: "train": executable file not found', "mine:1"),
        ("No such image: mine:1", "mine:1"),
        ("nobody has heard this", "nobody has heard this"),
    ],
)
def test_values(message, value):
    """The error names the image, or has the engine's message if its cause is unknown."""
    assert value in str(refused(message))
