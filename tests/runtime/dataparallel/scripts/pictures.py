# SPDX-License-Identifier: Apache-2.0
"""A script of the shape of SMDDP's MNIST example, its import renamed; a seed draws pictures."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import smdist.dataparallel.torch.torch_smddp

SIDE, CLASSES = 12, 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def pictures(count, seed):
    """Draw noisy copies of ten pictures, with their numbers."""
    originals = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    return TensorDataset(originals[labels] + 0.3 * noise, labels)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for step, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if step % args.log_interval == 0 and args.rank == 0:
            print(f"epoch {epoch} step {step}/{len(loader)} loss: {loss.item():.6f}", flush=True)


def test(model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(dim=1, keepdim=True).eq(target.view_as(output[:, 0:1])).sum().item()
            )
    count = len(loader.dataset)
    print(f"test loss: {loss / count:.4f}, accuracy: {correct / count:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=8)
    parser.add_argument("--save-model", default="")
    args = parser.parse_args()

    dist.init_process_group(backend="smddp")
    args.world_size, args.rank = dist.get_world_size(), dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    args.batch_size = max(args.batch_size // args.world_size, 1)
    torch.manual_seed(args.seed)
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda")

    train_set = pictures(320, seed=2)
    sampler = DistributedSampler(train_set, num_replicas=args.world_size, rank=args.rank)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, pin_memory=True)
    model = DDP(Net().cuda(local_rank))
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(args, model, device, loader, optimizer, epoch)
        if args.rank == 0:
            test(model.module, device, DataLoader(pictures(128, seed=3), batch_size=128))
        scheduler.step()
    if args.save_model and args.rank == 0:
        torch.save(model.module.state_dict(), args.save_model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
