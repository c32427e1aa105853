# SPDX-License-Identifier: Apache-2.0
"""How smp.init starts torch.distributed, and on which device, without starting it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig
from smdist.modelparallel.torch.session import process_group_init as worlds
from smdist.modelparallel.torch.session import process_groups


@pytest.fixture
def started(monkeypatch):
    """What init_process_group was called with, instead of being called."""
    calls = []
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: calls.append(args))
    return calls


@pytest.fixture
def gpus(monkeypatch):
    """A host that has two; the one that was made current."""
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(worlds, "accelerator_module", lambda: torch.cuda)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return taken


def _config(**values):
    return RankConfig(host_label="algo-2", **values)


def test_without_gpus_all_goes_by_our_backend(started, monkeypatch):
    """CPU tensors are all there are."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert worlds.start(_config(is_in_world=True))
    assert [("smdist",)] == started


def test_with_gpus_their_tensors_go_by_nccl(started, gpus):
    """CPU tensors, such as those between stages, go by our backend."""
    assert worlds.start(_config(is_in_world=True))
    assert [("cpu:smdist,cuda:nccl",)] == started


def test_each_rank_takes_the_gpu_of_its_number(gpus):
    """Where the launcher numbered it; else the current device stays."""
    worlds.take_device(_config(local_rank=1))
    worlds.take_device(_config())

    assert [1] == gpus


def test_a_rank_without_a_gpu_of_its_own_is_refused(gpus):
    """Two ranks on one would wait for each other in NCCL."""
    with pytest.raises(OptionError) as caught:
        worlds.take_device(_config(local_rank=2))

    assert (("LOCAL_RANK",), "missing_gpu") == (caught.value.about, caught.value.kind)
    assert (
        "rank 2 of algo-2 has no GPU of its own: the host has 2 GPUs, and each rank uses one. Start"
        " at most 2 ranks per host, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        == str(caught.value)
    )


@pytest.mark.parametrize("given", [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "MASTER_ADDR")])
def test_a_rank_that_cannot_meet_the_others_does_not_train_alone(started, given):
    """The error names what is missing."""
    with pytest.raises(OptionError) as caught:
        worlds.start(_config(world_variables=given))

    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in given]
    assert [] == started
    assert (missing[0],) == caught.value.about


def test_an_address_alone_makes_no_world(started):
    """Containers have one for other reasons; the process is a world of its own."""
    assert worlds.start(_config(world_variables=("MASTER_ADDR", "MASTER_PORT")))
    assert 1 == len(started)


def test_a_default_group_without_cpu_tensors_is_refused(monkeypatch):
    """Stages send each other CPU tensors; the error says how to have both kinds."""

    only_cuda = SimpleNamespace(_device_types=(torch.device("cuda"),))
    torchs = SimpleNamespace(
        is_initialized=lambda: True,
        get_backend=lambda: "nccl",
        group=SimpleNamespace(WORLD=only_cuda),
    )
    monkeypatch.setattr(process_groups, "dist", torchs)

    with pytest.raises(OptionError) as caught:
        process_groups.default_group()

    assert (("backend",), "unsupported") == (caught.value.about, caught.value.kind)
    assert 'init_process_group("smdist")' in caught.value.hint
