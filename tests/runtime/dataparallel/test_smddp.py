# SPDX-License-Identifier: Apache-2.0
"""Scripts of AWS's SMDDP run after a rename, and its functions mean what they meant."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import smdist.dataparallel.torch.distributed as sdp
from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel

SCRIPTS = Path(__file__).parent / "scripts"
WORLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def with_torchrun(script, path):
    """Run a script on two ranks to its end and read what it saved."""
    command = [sys.executable, *TORCHRUN, str(SCRIPTS / script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert 0 == done.returncode, done.stderr
    return torch.load(path)


@pytest.fixture
def by_hand(monkeypatch):
    """A process that no launcher started."""
    for name in WORLD:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("script", [pytest.param("era1.py", marks=pytest.mark.slow), "era2.py"])
def test_a_script_of_smddp_trains_what_one_process_trains(tmp_path, by_hand, script):
    """Two ranks of torchrun, and this process without a world."""
    ranks = with_torchrun(script, tmp_path / "ranks")
    by_hand.setattr(sys, "argv", [script, str(tmp_path / "alone")])
    runpy.run_path(str(SCRIPTS / script))
    alone = torch.load(tmp_path / "alone")

    assert abs(alone["loss"] - ranks["loss"]) < 1e-6
    for name, weight in alone["weights"].items():
        assert torch.allclose(weight, ranks["weights"][name], atol=1e-6)


def functions(rank, size):
    total = torch.full((3,), float(rank))
    handle = sdp.all_reduce(total, op=sdp.ReduceOp.AVERAGE, async_op=True)
    handle.wait()
    extremes = [torch.tensor([rank]), torch.tensor([rank])]
    sdp.all_reduce(extremes[0], op=sdp.ReduceOp.MIN)
    sdp.all_reduce(extremes[1], op=sdp.ReduceOp.MAX, group=sdp.group.WORLD)
    copy = torch.full((2,), float(rank + 5))
    sdp.broadcast(copy)
    rows = [torch.empty(1) for _ in range(size)]
    sdp.all_gather(rows, torch.tensor([float(rank)]))
    swapped = torch.empty(size)
    sdp.all_to_all_single(output_t=swapped, input_t=torch.arange(float(size)) + 10 * rank)
    sdp.barrier()
    seen = (sdp.is_initialized(), sdp.get_world_size(), sdp.get_rank())
    return seen, total, [e.item() for e in extremes], copy, torch.cat(rows), swapped


def test_smddps_functions(world):
    """All of SMDDP 1.3's, by its names and defaults."""
    for rank, answer in enumerate(world.run(functions, size=3)):
        seen, total, extremes, copy, rows, swapped = answer
        assert (True, 3, rank) == seen
        assert torch.equal(torch.ones(3), total)
        assert [0, 2] == extremes
        assert torch.equal(torch.full((2,), 5.0), copy)
        assert [0, 1, 2] == rows.tolist()
        assert [rank, rank + 10, rank + 20] == swapped.tolist()


def in_a_subgroup(rank, size):
    pair = dist.new_group([0, 2], backend="smddp")
    if rank == 1:
        return None
    total = torch.full((1,), 10.0**rank)
    sdp.all_reduce(total, group=pair)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.BatchNorm1d(2), None, None, True, pair, 1)
    with model.no_sync():
        model(torch.full((4, 2), float(rank))).sum().backward()
        kept = model.module.bias.grad.clone()
    model(torch.full((4, 2), float(rank))).sum().backward()
    return dist.get_backend(pair), total.item(), kept, model.module.bias.grad


def test_subgroups_buffers_and_no_sync(world):
    """What SMDDP did not have, or had late; its positional arguments."""
    first, nothing, last = world.run(in_a_subgroup, size=3)

    assert nothing is None
    for backend, total, kept, gradient in (first, last):
        assert ("smddp", 101.0) == (backend, total)
        assert torch.equal(torch.full((2,), 4.0), kept)
        assert torch.equal(torch.full((2,), 8.0), gradient)


def join(rank, size, store, backend):
    """Leave the group the world made and make another one by SMDDP's call."""
    dist.destroy_process_group()
    file = dist.FileStore(store, size)
    sdp.init_process_group(backend, store=file, rank=rank, world_size=size)
    total = torch.ones(1)
    sdp.all_reduce(total)
    return dist.get_backend(), total.item()


MAP = "cpu:smddp,cuda:smddp"


@pytest.mark.parametrize(("backend", "name"), [(None, "smdist"), ("smddp", "smddp"), (MAP, MAP)])
def test_init_process_group_takes_what_torch_takes(world, tmp_path, backend, name):
    """A store, a rank, a size; the backend's names are one backend."""
    answers = world.run(join, str(tmp_path / "store"), backend, size=2)

    assert [(name, 2.0)] * 2 == answers


def test_started_by_hand_nothing_is_available(by_hand):
    """The error of each function that needs a rank has a hint on how to start ranks."""
    assert not sdp.is_available()
    assert not sdp.is_initialized()
    with pytest.raises(OptionError) as joining:
        sdp.init_process_group()
    with pytest.raises(OptionError) as numbering:
        sdp.get_local_rank()

    assert (("RANK",), "missing") == (joining.value.about, joining.value.kind)
    assert (("LOCAL_RANK",), "missing") == (numbering.value.about, numbering.value.kind)


def test_other_backends_are_refused(by_hand):
    """SMDDP ignored the argument."""
    with pytest.raises(OptionError) as caught:
        sdp.init_process_group("nccl")

    assert ("backend",) == caught.value.about
    assert (
        "backend is 'nccl': process groups of smdist.dataparallel.torch.distributed use the backend"
        " smdist. Leave backend out: smdist takes CPU tensors and CUDA tensors."
    ) == str(caught.value)


def test_started_by_a_launcher_all_is_available(by_hand):
    for name in WORLD:
        by_hand.setenv(name, "1")

    assert sdp.is_available()
    assert 1 == sdp.get_local_rank()
