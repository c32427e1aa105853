# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: FSDP2 steps, and the two collectives of FSDP2 alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # the backend "fake"
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from benchmarks.harness.timed_steps import timed

BLOCKS = 4
_WIDTH = 1280  # 6.25 MiB per block
BYTES = BLOCKS * _WIDTH * _WIDTH * 4

_now: dict[str, Callable[[], Any]] = {}  # measured functions, by name


def prepare() -> None:
    """Create the models and functions that are measured, and check each result once."""
    alone = _model()
    _steps(alone)()
    for name, reshard in (("resharding", True), ("keeping", False)):
        model = _sharded(reshard)
        _now[name] = _steps(model)
        _now[name]()
        _check_gradients(model, alone)
        _now[f"silent {name}"] = _steps(_sharded(reshard, _silent()))
    _prepare_collectives()


def _model() -> nn.Sequential:
    """Return the model, equal on all ranks; its input is one row, so it computes very little."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(BLOCKS)])


def _silent() -> DeviceMesh:
    """Return a mesh of all ranks whose collectives return at once and move no data."""
    return DeviceMesh.from_group(dist.new_group(backend="fake"), "cpu")


def _sharded(reshard: bool, mesh: DeviceMesh | None = None) -> nn.Sequential:
    """Return the sharded model, with every block as a unit.

    Gloo has no ReduceOp.AVG, so both peers sum and FSDP2 divides.
    """
    model = _model()
    for unit in [*model, model]:
        sharded = fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
        assert isinstance(sharded, FSDPModule)
        sharded.set_force_sum_reduction_for_comms(True)
    return model


def _steps(model: nn.Module) -> Callable[[], None]:
    x = torch.ones(1, _WIDTH)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return step


def _check_gradients(model: nn.Module, alone: nn.Module) -> None:
    """Check that mean gradients equal those of one process: all ranks have the same input."""
    for ours, whole in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.full_tensor(), whole.grad)  # type: ignore[attr-defined]


def _prepare_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = BYTES // 4 // ranks
    whole, part = torch.arange(ranks).repeat_interleave(size).float(), torch.empty(size)
    _now["reduce_scatter"] = lambda: dist.reduce_scatter_single(part, whole)
    _now["reduce_scatter"]()
    assert (part == ranks * rank).all(), f"reduce-scatter of {ranks * rank} is {part[:4]}"
    target, mine = torch.empty(ranks * size), torch.full((size,), float(rank))
    _now["all_gather"] = lambda: dist.all_gather_single(target, mine)
    _now["all_gather"]()
    assert (target == whole).all(), f"all-gather is {target[::size]}"


def resharding(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of this many steps with `reshard_after_forward`."""
    return timed(_now["resharding"], iterations)


def keeping(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps without `reshard_after_forward`."""
    return timed(_now["keeping"], iterations)


def silent_resharding(iterations: int) -> tuple[float, float]:
    """Return the wall and processor seconds of steps whose collectives do nothing."""
    return timed(_now["silent resharding"], iterations)


def silent_keeping(iterations: int) -> tuple[float, float]:
    return timed(_now["silent keeping"], iterations)


def all_gather(iterations: int) -> tuple[float, float]:
    return timed(_now["all_gather"], iterations)


def reduce_scatter(iterations: int) -> tuple[float, float]:
    return timed(_now["reduce_scatter"], iterations)
