# SPDX-License-Identifier: Apache-2.0
"""Elastic script for Horovod, whose rank KILLED dies in step 7."""

import argparse
import json
import os
import signal
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--killed", type=int)
killed = parser.parse_known_args()[0].killed
hvd.init()
first_rank = hvd.rank()
torch.manual_seed(0)
data = torch.randn(240, 4)
target = data.sum(1, keepdim=True)
torch.manual_seed(hvd.rank())  # rank 0's weights are sent to all
model = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(240))
values = {"epoch": 0, "step": 0, "seen": [], "losses": []}
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, **values)


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 2):  # noqa: B020  evaluated once, before it
        sampler.set_epoch(state.epoch)
        loader = torch.utils.data.DataLoader(range(240), 4, sampler=sampler)
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = ((model(data[batch]) - target[batch]) ** 2).mean()
            if state.step == 7 and first_rank == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            every = hvd.allgather(batch, name="samples")
            state.seen = [*state.seen, *([state.epoch, int(each)] for each in every)]
            state.losses = [*state.losses, loss.item()]
            state.step += 1
            sampler.record_batch(number, len(batch))
            state.commit()


train(state)
result = {"size": hvd.size(), "seen": state.seen, "losses": state.losses}
result["weights"] = [value.tolist() for value in model.parameters()]
Path(os.environ["SM_MODEL_DIR"], f"{first_rank}.json").write_text(json.dumps(result))
hvd.shutdown()
