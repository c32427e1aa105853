# SPDX-License-Identifier: Apache-2.0
"""Small model under several layouts: each layout saves, and loads the checkpoints of all others.

Every layout uses the same microbatches, so a run continues equally under every layout.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROWS, WIDTH, WORDS, MICROBATCHES = 8, 8, 13, 4
ZERO = {"step": 0}


@dataclass(frozen=True)
class Layout:
    """Number of ranks and arguments of smp.init; `size` 0 is a plain process without smp."""

    size: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas."""
        return max(1, self.size) // int(self.options.get("pipeline_parallel_degree", 1))


def _split(size: int, stages: int, **options: Any) -> Layout:
    replicas = size // stages
    return Layout(
        size,
        {
            "pipeline_parallel_degree": stages,
            "microbatches": MICROBATCHES // replicas,
            "pipeline": "1f1b",
            **options,
        },
    )


LAYOUTS = {
    "plain": Layout(0),
    "one": _split(1, 1),
    "two": _split(2, 2),
    "four": _split(4, 4),
    "two_by_two": _split(4, 2),
    "sharded": _split(4, 2, sharding="full"),
    "hybrid": _split(4, 1, sharding="optimizer", shard_degree=2),
    "virtual": _split(2, 2, pipeline="interleaved_1f1b", virtual_stages=2),
}


class Block(nn.Module):
    """Block without submodules, so that no plan opens it; its odd sizes make shards uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.up = nn.Parameter(torch.randn(11, WIDTH) / 3)
        self.up_bias = nn.Parameter(torch.zeros(11))
        self.down = nn.Parameter(torch.randn(WIDTH, 11) / 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.layer_norm(x, (WIDTH,), self.scale)
        hidden = torch.relu(nn.functional.linear(hidden, self.up, self.up_bias))
        hidden = nn.functional.linear(hidden, self.down)
        return x + nn.functional.dropout(hidden, 0.1, self.training)


class Model(nn.Module):
    """Model with tied, frozen and unused weights, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.seen = Counting()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.spare = nn.Parameter(torch.full((3,), 2.0))
        self.later = nn.Linear(2, 2)
        self.blocks[1].up_bias.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.seen(x))


class Counting(nn.Module):
    """Module whose buffer changes in training, equally on every replica."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return x * 1.0


def make(seed: int) -> tuple[Model, torch.optim.Optimizer, Any]:
    """Return a model, an optimizer with three groups, and a learning rate schedule."""
    torch.manual_seed(seed)
    model = Model()
    late = [*model.blocks[3].parameters()]
    other = [model.spare, *model.later.parameters()]
    taken = {id(p) for p in [*late, *other]}
    early = [p for p in model.parameters() if id(p) not in taken]
    groups = [{"params": early}, {"params": late, "lr": 0.02, "weight_decay": 0.0},
              {"params": other, "lr": 0.5}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=0.01 * (1 + seed))
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return all rows of one step."""
    words = torch.randint(WORDS, (2, ROWS, 5), generator=torch.Generator().manual_seed(step))
    return words[0], words[1]


class Position:
    """Position of a replica in the data."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        """Return the next step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the step of `state`."""
        self.step = state["step"]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


@dataclass
class Run:
    """Model in training under a layout."""

    layout: Layout
    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: Any
    data: Position = field(default_factory=Position)

    def step(self) -> float:
        """Run one step of all replicas and return their mean loss."""
        inputs, targets = batch(self.data.step)
        self.data.step += 1
        loss = (
            self._plain(inputs, targets) if self.layout.size == 0 else self._split(inputs, targets)
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss

    def steps(self, count: int) -> list[float]:
        """Run this many steps and return their losses."""
        return [self.step() for _ in range(count)]

    def _plain(self, inputs: Tensor, targets: Tensor) -> float:
        from smdist.modelparallel.torch.capture import capture
        from smdist.modelparallel.torch.randomness import RngStream, drawing

        total = 0.0
        program = capture(self.model, inputs[: ROWS // MICROBATCHES]).program
        pieces = zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)
        for number, (words, wanted) in enumerate(pieces):
            draws = RngStream(seed=0, step=self.data.step - 1, microbatch=number)
            with drawing(program, draws):
                loss = loss_of(self.model(words), wanted) / MICROBATCHES
                loss.backward()
            total += loss.item()
        return total

    def _split(self, inputs: Tensor, targets: Tensor) -> float:
        import torch.distributed as dist

        from smdist.modelparallel.torch import session

        replica = session.current().groups.rdp_rank
        count = self.layout.replicas
        mine, wanted = inputs.chunk(count)[replica], targets.chunk(count)[replica]
        found = self.model.train_step(mine, loss_of, targets=wanted).reduce_mean().detach()
        if self.layout.size > 1:
            dist.all_reduce(found)
        return float(found) / self.layout.size


@contextmanager
def running(name: str, seed: int, *, cuts: bool = True) -> Iterator[Run]:
    """Create a new model under a layout.

    Args:
        cuts: Whether the model is cut at once, instead of by its first step.
    """
    torch.set_num_threads(1)
    layout = LAYOUTS[name]
    model, optimizer, scheduler = make(seed)
    if layout.size == 0:
        yield Run(layout, model, optimizer, scheduler)
        return
    from sagemaker_dist.contract.model_parallel import ModelParallel
    from smdist.modelparallel.torch import session
    from smdist.modelparallel.torch.parallel import parallelize
    from smdist.modelparallel.torch.smp.distributed_optimizer import DistributedOptimizer

    session.init(ModelParallel(**layout.options))
    try:
        example = batch(0)[0][: ROWS // layout.replicas] if cuts else None
        wrapped = DistributedOptimizer(optimizer)
        split = parallelize(model, example=example, costs="estimate")
        yield Run(layout, split, wrapped, scheduler)
    finally:
        session.end()


def train_and_save(rank: int, size: int, name: str, folder: str) -> list[float]:
    """Run three steps, save a checkpoint, run two more steps and return the losses of those."""
    from smdist.modelparallel.torch.checkpoint import save_checkpoint

    with running(name, seed=0) as run:
        run.steps(3)
        random.seed(rank)
        np.random.seed(rank)
        for partial in (True, False):
            save_checkpoint(
                folder, name, partial, run.model, run.optimizer, {"from": name},
                scheduler=run.scheduler, data=run.data,
            )  # fmt: skip
        return run.steps(2)


def load_and_train(
    rank: int, size: int, name: str, folder: str, tags: list[str], partial: bool = True
) -> dict[str, list[float]]:
    """Load each checkpoint into a new model, continue training, and return the losses by tag."""
    from smdist.modelparallel.torch.checkpoint import resume_from_checkpoint

    losses = {}
    for number, tag in enumerate(tags):
        with running(name, seed=1 + number, cuts=number % 2 == 0) as run:
            content = resume_from_checkpoint(
                folder, tag, partial, model=run.model, optimizer=run.optimizer,
                scheduler=run.scheduler, data=run.data,
            )  # fmt: skip
            assert {"from": tag} == content
            if LAYOUTS[tag].size == 0 and run.layout.size:
                run.model.step_number = run.data.step  # a plain process does not count its steps
            losses[tag] = run.steps(2)
    return losses


def saved_by(world: Any, name: str, folder: Path) -> list[float]:
    """Train and save under a layout; return the losses after the checkpoint."""
    size = LAYOUTS[name].size
    if size == 0:
        return train_and_save(0, 1, name, str(folder))
    return world.run(train_and_save, name, str(folder), size=size)[0]


def loaded_by(
    world: Any, name: str, folder: Path, tags: list[str], *, partial: bool = True
) -> dict[str, list[float]]:
    """Load and train under a layout; return the losses by tag."""
    size = LAYOUTS[name].size
    if size == 0:
        return load_and_train(0, 1, name, str(folder), tags, partial)
    found = world.run(load_and_train, name, str(folder), tags, partial, size=size, deadline=120)
    assert all(found[0] == other for other in found)
    return found[0]


def pairs(world: Any, folder: Path, names: list[str] | None = None) -> dict[tuple[str, str], float]:
    """Save under every layout, load under every layout, and compare the losses after each load.

    Args:
        world: `ranks.World(4)`.

    Returns:
        The largest difference from the run that continued without a load, by (saved, loaded).
    """
    names = names or list(LAYOUTS)
    expected = {name: saved_by(world, name, folder) for name in names}
    apart = {}
    for name in names:
        for tag, losses in loaded_by(world, name, folder, names).items():
            differences = (abs(a - b) for a, b in zip(expected[tag], losses, strict=True))
            apart[tag, name] = max(differences)
    return apart
