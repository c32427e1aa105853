# SPDX-License-Identifier: Apache-2.0
"""Elastic training with torch, whose rank KILLED dies in the middle of step 7."""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smdist.dataparallel.torch  # noqa: F401  registers the backend
from smdist import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--killed", type=int)
killed = parser.parse_known_args()[0].killed
dist.init_process_group("smdist")
first_rank = dist.get_rank()
torch.manual_seed(0)
data = torch.randn(240, 4)
target = data.sum(1, keepdim=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
sampler = elastic.ElasticSampler(data)
state = elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, seen=[], losses=[])


def train(state):
    ddp = DistributedDataParallel(state.model)
    for state.epoch in range(state.epoch, 2):  # noqa: B020  evaluated once, before it
        sampler.set_epoch(state.epoch)
        for batch in torch.utils.data.DataLoader(range(240), 4, sampler=sampler):
            optimizer.zero_grad()
            loss = ((ddp(data[batch]) - target[batch]) ** 2).mean()
            if state.step == 7 and first_rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            every = [torch.empty_like(batch) for _ in range(dist.get_world_size())]
            dist.all_gather(every, batch)
            state.seen = [*state.seen, *([state.epoch, int(i)] for each in every for i in each)]
            state.losses = [*state.losses, loss.item()]
            state.step += 1
            sampler.record(len(batch))
            state.commit()


elastic.run(train, state)
result = {"size": dist.get_world_size(), "seen": state.seen, "losses": state.losses}
result["weights"] = [value.tolist() for value in model.parameters()]
Path(os.environ["SM_MODEL_DIR"], f"{first_rank}.json").write_text(json.dumps(result))
dist.destroy_process_group()
