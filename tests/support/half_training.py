# SPDX-License-Identifier: Apache-2.0
"""Training in 16 bits with float32 master weights: split, and written out in one process."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

import smdist.modelparallel.torch as smp

WORDS, WIDTH, ROWS, LENGTH, PARTS, RATE = 16, 8, 8, 4, 4, 0.01
DYNAMIC = {"static_loss_scale": None, "dynamic_loss_scale": True}
SCALE = 2.0**10


class Block(nn.Module):
    """Attention with one head, and an MLP, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / WIDTH**0.5, dim=-1)
        x = x + self.out(weights @ v)
        return x + self.down(gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """Small language model; its second input is a float tensor, added to the embeddings."""

    def __init__(self, *, tied):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids, positions):
        return {"logits": self.head(self.norm(self.blocks(self.words(ids) + positions)))}


def gpt(*, tied=False):
    """Return the model, with the same weights every time."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Gpt(tied=tied)


def batch(step):
    """Return words, positions and targets of a step."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    return ids[:, :-1], torch.randn(ROWS, LENGTH, WIDTH, generator=generator), ids[:, 1:]


def loss_of(logits, targets):
    """Return the loss of a microbatch, which is in float32."""
    assert logits.dtype is torch.float32
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@smp.step
def train_step(model: Any, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
    """Run forward and backward."""
    loss = loss_of(model(ids, positions)["logits"], targets)
    model.backward(loss)
    return loss


@dataclass
class Trained:
    """What a training did, step by step.

    Attributes:
        losses: Mean loss of each step.
        scales: Loss scale after each step.
        skipped: True for each step that was skipped.
        norms: Result of clipping in each step, if gradients are clipped.
        state: State dict of the model at the end.
    """

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)


def start(degree=1, **options):
    """Start a session with float16, four microbatches."""
    plain = {"fp16": True, "microbatches": PARTS, "pipeline": "simple"}
    smp.init(smp.ModelParallel(**{**plain, "pipeline_parallel_degree": degree, **options}))


def made(*, tied=False, kind=torch.optim.AdamW, **arguments):
    """Return the split model and its optimizer, with a static loss scale by default."""
    model = smp.DistributedModel(gpt(tied=tied), trace_device="cpu")
    own = kind(model.parameters(), lr=RATE)
    return model, smp.DistributedOptimizer(own, **(arguments or {"static_loss_scale": SCALE}))


def train(model, optimizer, steps, *, first=0, spoil=(), rank=0, max_norm=None):
    """Train some steps; in the steps of `spoil`, rank 1 has an infinite gradient."""
    found = Trained()
    for step in range(first, first + steps):
        optimizer.zero_grad()
        found.losses.append(train_step(model, *batch(step)).reduce_mean().item())
        if rank == 1 and step in spoil:
            gradient = next(p.grad for p in model.parameters() if p.grad is not None)
            getattr(gradient, "_local_tensor", gradient).view(-1)[0] = float("inf")
        if max_norm is not None:
            found.norms.append(optimizer.clip_master_grads(max_norm))
        optimizer.step()
        found.scales.append(optimizer.loss_scale)
        found.skipped.append(optimizer.overflow)
    found.state = model.state_dict()
    return found


def alone(steps, *, tied=False, dtype=torch.float16, scale=SCALE, max_norm=None, kind=None):
    """Train in one process: 16-bit parameters, float32 master weights, a static loss scale."""
    model = gpt(tied=tied).to(dtype)
    masters = {name: nn.Parameter(p.detach().float()) for name, p in model.named_parameters()}
    optimizer = (kind or torch.optim.AdamW)(masters.values(), lr=RATE)
    found = Trained()
    for step in range(steps):
        model.zero_grad()
        losses = []
        for ids, positions, targets in zip(*(t.chunk(PARTS) for t in batch(step)), strict=True):
            loss = loss_of(model(ids, positions.to(dtype))["logits"].float(), targets)
            loss.backward(torch.tensor(scale / PARTS))
            losses.append(loss.detach())
        for name, parameter in model.named_parameters():
            masters[name].grad = parameter.grad.float() / scale
        if max_norm is not None:
            norm = nn.utils.clip_grad_norm_(masters.values(), max_norm)
            found.norms.append(norm.item())
        optimizer.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(masters[name])
        found.losses.append((torch.stack(losses).sum(0) / PARTS).item())
    found.state = {name: master.detach() for name, master in masters.items()}
    return found


def furthest(expected, found):
    """Return the largest difference between the values of two state dicts."""
    return max((found[name] - value).abs().max().item() for name, value in expected.items())
