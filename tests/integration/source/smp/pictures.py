# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits in the shape of AWS's MNIST script for SMP v1: only the import is ours."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset

import smdist.modelparallel.torch as smp


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        return torch.flatten(functional.max_pool2d(x, 2), 1)


class Linears(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = Convolutions()
        self.net2 = Linears()

    def forward(self, x):
        return self.net2(self.net1(x))


@smp.step
def train_step(args, model, scaler, pictures, labels):
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(args.amp)):
        output = model(pictures)
    loss = functional.nll_loss(output.float(), labels)
    model.backward(scaler.scale(loss) if args.amp else loss)
    return output, loss


@smp.step
def test_step(model, pictures, labels):
    output = model(pictures)
    loss = functional.nll_loss(output, labels, reduction="sum").item()
    right = output.argmax(1).eq(labels).sum().item()
    return loss, right


def train(args, model, scaler, loader, optimizer):
    model.train()
    losses = []
    for pictures, labels in loader:
        optimizer.zero_grad()
        output, loss_mb = train_step(args, model, scaler, pictures, labels)
        assert len(output.concat()) == len(labels)
        losses.append(loss_mb.reduce_mean().item())
        if args.amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return losses


def test(model, loader):
    model.eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for pictures, labels in loader:
            losses, rights = test_step(model, pictures, labels)  # no tensors: lists
            total += sum(losses)
            right += sum(rights)
    return total / len(loader.dataset), right / len(loader.dataset)


def dataset(path):
    arrays = np.load(path)
    return TensorDataset(torch.from_numpy(arrays["pictures"]), torch.from_numpy(arrays["labels"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--amp", type=int, default=0)
    parser.add_argument("--partial", type=int, default=1)
    parser.add_argument("--data", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--checkpoints", type=Path, default=os.environ.get("SM_CHECKPOINT_DIR"))
    parser.add_argument("--results", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR"))
    args = parser.parse_args()

    torch.manual_seed(1)
    smp.init()
    train_set = dataset(args.data / "train.npz")
    mine = range(smp.dp_rank(), len(train_set) // smp.dp_size() * smp.dp_size(), smp.dp_size())
    loader = DataLoader(Subset(train_set, mine), args.batch_size, drop_last=True)
    test_loader = DataLoader(dataset(args.data / "test.npz"), 60)

    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    model = smp.DistributedModel(model)
    scaler = smp.amp.GradScaler(device="cpu", enabled=bool(args.amp))
    optimizer = smp.DistributedOptimizer(optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

    path, first = args.checkpoints / "pictures.pt", 0
    if any(args.checkpoints.glob("*")):
        saved = smp.load(path, partial=bool(args.partial))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["epoch"]

    report = {"losses": [], "tests": []}
    for epoch in range(first, args.epochs):
        report["losses"] += train(args, model, scaler, loader, optimizer)
        report["tests"].append(test(model, test_loader))
        scheduler.step()
        save(
            args, path, model, optimizer, {"scheduler": scheduler.state_dict(), "epoch": epoch + 1}
        )
    gathered = smp.allgather(report["tests"], smp.DP_GROUP)
    assert all(each == gathered[0] for each in gathered), gathered
    if args.results:
        (args.results / f"report-{smp.rank()}.json").write_text(json.dumps(report))
    smp.barrier()
    if smp.rank() == 0:
        print("SMP training finished successfully")


def save(args, path, model, optimizer, more):
    if smp.dp_rank() == 0:
        partial = bool(args.partial)
        states = {
            "model": model.local_state_dict() if partial else model.state_dict(),
            "optimizer": optimizer.local_state_dict() if partial else optimizer.state_dict(),
        }
        if partial or smp.rank() == 0:
            smp.save({**states, **more}, path, partial=partial)
    smp.barrier()


if __name__ == "__main__":
    main()
