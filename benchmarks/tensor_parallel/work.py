# SPDX-License-Identifier: Apache-2.0
"""Work of every rank: forward and backward passes of a block whose layers are split over ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

WIDTH, HEADS, WORDS = 1024, 16, 32_768
SEQUENCE = 16  # tokens of one sequence of the GPT block

_blocks: dict[str, tuple[nn.Module, Tensor]] = {}
_peer = [""]
_waits: list[float] = []  # seconds in each collective of a pass


class Mlp(nn.Module):
    """Two linear layers, with four times as many channels between them."""

    plan: ClassVar = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """Block of GPT: attention and an MLP, each behind a normalization and a residual connection."""

    plan: ClassVar = {
        "query": ColwiseParallel(),
        "key": ColwiseParallel(),
        "value": ColwiseParallel(),
        "out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        query, key, value = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Head(nn.Module):
    """Head of a language model, and the loss on its logits."""

    plan: ClassVar = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(x).flatten(0, 1)
        targets = torch.arange(logits.shape[0]) * 7919 % WORDS
        return functional.cross_entropy(logits, targets)


_KINDS = {"mlp": Mlp, "gpt": Block, "head": Head}


def prepare(kind: str, tokens: int, peer: str) -> int:
    """Make a block, and split it over the ranks; return the elements that this rank holds.

    `kind` is "mlp", "gpt" or "head".
    """
    _peer[0] = peer
    torch.manual_seed(1)
    block = _KINDS[kind]()
    x = torch.randn(max(1, tokens // SEQUENCE), min(tokens, SEQUENCE), WIDTH)
    if peer == "gloo":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(block, mesh, _KINDS[kind].plan)  # type: ignore[arg-type]
    else:
        _split(block, x)
    _blocks[f"{kind}-{tokens}"] = block, x.requires_grad_()
    return sum(_local(each).numel() for each in block.parameters())


def _split(block: nn.Module, x: Tensor) -> None:
    from smdist.modelparallel.torch.tensor_parallel import find
    from smdist.modelparallel.torch.tensor_parallel.split_model import split_model
    from smdist.modelparallel.torch.tensor_splits import GroupPeers

    plan = find(block, ((x,), {}), dist.get_world_size())
    split_model(block, plan, GroupPeers(dist.group.WORLD))


def _local(parameter: Any) -> Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def check(kind: str, tokens: int) -> float:
    """Return the sum of a block's output, which is the same for every peer."""
    block, x = _blocks[f"{kind}-{tokens}"]
    with torch.no_grad(), _losses():
        return float(block(x).double().sum())


def _losses() -> AbstractContextManager[None]:
    """Return the context in which losses are computed on parts of the logits."""
    if _peer[0] == "gloo":
        return loss_parallel()
    import smdist.modelparallel.torch as smp

    return smp.loss_parallel()


def mlp_16(iterations: int) -> tuple[float, float]:
    return _timed("mlp-16", iterations)


def mlp_2048(iterations: int) -> tuple[float, float]:
    return _timed("mlp-2048", iterations)


def gpt_16(iterations: int) -> tuple[float, float]:
    return _timed("gpt-16", iterations)


def gpt_2048(iterations: int) -> tuple[float, float]:
    return _timed("gpt-2048", iterations)


def head_16(iterations: int) -> tuple[float, float]:
    return _timed("head-16", iterations)


def head_2048(iterations: int) -> tuple[float, float]:
    return _timed("head-2048", iterations)


def _timed(name: str, iterations: int) -> tuple[float, float]:
    """Return wall and processor seconds of forward and backward passes."""
    block, x = _blocks[name]
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(iterations):
        block.zero_grad(set_to_none=True)
        x.grad = None
        with _losses():
            block(x).sum().backward()
    return time.perf_counter() - wall, time.process_time() - cpu


def exchange(name: str, rounds: int) -> list[list[float]]:
    """Return the seconds in each collective of some forward and backward passes of a block.

    Every collective is timed from its call to its end, with the wait for the other rank.
    """
    block, x = _blocks[name]
    found = []
    for _ in range(rounds):
        _waits.clear()
        with _timed_collectives(), _losses():
            block(x).sum().backward()
        found.append(list(_waits))
    return found


@contextmanager
def _timed_collectives() -> Iterator[None]:
    """Time the sums of torch.distributed and of DTensor in a `with` block."""
    plain = dist.all_reduce, functional_collectives.all_reduce, dist.all_gather
    dist.all_reduce, functional_collectives.all_reduce, dist.all_gather = map(_timing, plain)
    try:
        yield
    finally:
        dist.all_reduce, functional_collectives.all_reduce, dist.all_gather = plain


def _timing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        found = plain(*args, **kwargs)
        if hasattr(found, "wait"):
            found = found.wait()
        _waits.append(time.perf_counter() - begin)
        return found

    return timed
