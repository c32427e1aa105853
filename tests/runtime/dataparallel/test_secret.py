# SPDX-License-Identifier: Apache-2.0
"""The job's secret: from a file where one is given, never shown, refused when it differs."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.secret import read_secret


def reduce_with_secret(rank, size, folder, differ):
    """Leave the group the world made and make one with a secret from a file."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    os.environ["SMDIST_SECRET_FILE"] = f"{folder}/{rank if differ else 0}"
    try:
        dist.init_process_group(
            "smdist", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=10)
        )
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor.sum().item()
    except dist.DistBackendError as error:
        return str(error), fault_fields("kind", "culprit")
    finally:
        del os.environ["SMDIST_SECRET_FILE"]


@pytest.fixture
def secrets(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).write_text(f"secret number {number}\n")
    return str(tmp_path)


def test_a_secret_from_a_file_serves(world, secrets):
    """The same file on every rank."""
    assert [6.0, 6.0] == world.run(reduce_with_secret, secrets, False, size=2)


def test_ranks_with_different_secrets_do_not_talk(world, secrets, capfd):
    """Each rank raises soon, and nothing shows a secret."""
    (first, one), (second, other) = world.run(reduce_with_secret, secrets, True, size=2)
    shown = capfd.readouterr()

    assert [("lost", 1), ("lost", 0)] == [one, other]
    assert "another secret" in second
    assert "secret number" not in first + second + shown.out + shown.err


@pytest.mark.parametrize("content", [None, "", "  \n"])
def test_no_secret_in_the_file_is_said(tmp_path, content):
    """A missing or empty file."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)

    with pytest.raises(LaunchError) as caught:
        read_secret(path)

    assert ("SMDIST_SECRET_FILE",) == caught.value.about
