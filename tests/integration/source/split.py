# SPDX-License-Identifier: Apache-2.0
"""Script that trains a small model, split as the job requests, and writes each rank's facts."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import smdist.modelparallel.torch as smp
from smdist.config import read_rank_config

STEPS, BATCH, WIDTH = 4, 8, 16


@smp.step
def train_step(model, inputs, targets):
    loss = functional.mse_loss(model(inputs), targets)
    model.backward(loss)
    return loss


def build():
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def batches():
    """Return one global batch for each step."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True)


def main():
    torch.set_num_threads(1)
    smp.init()
    model = smp.DistributedModel(build())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    losses = []
    for inputs, targets in batches():
        mine = slice(smp.rdp_rank(), None, smp.rdp_size())
        optimizer.zero_grad()
        loss = train_step(model, inputs[mine], targets[mine]).reduce_mean()
        optimizer.step()
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
    facts = {
        "losses": losses,
        "place": [smp.pp_rank(), smp.rdp_rank(), smp.pp_size(), smp.rdp_size()],
        "options": asdict(read_rank_config().model_parallel),
        "microbatches": smp.state.cfg.microbatches,
    }
    path = Path(os.environ["SM_MODEL_DIR"], f"rank-{smp.rank()}.json")
    path.write_text(json.dumps(facts))
    smp.barrier()


if __name__ == "__main__":
    main()
