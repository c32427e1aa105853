# SPDX-License-Identifier: Apache-2.0
"""Script for Horovod with the shape of its PyTorch MNIST example, on random pictures."""

import argparse
import hashlib
import os
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, kernel_size=5), nn.Conv2d(4, 8, kernel_size=5)
        self.drop = nn.Dropout2d()
        self.hidden, self.out = nn.Linear(128, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.first(x), 2))
        x = functional.relu(functional.max_pool2d(self.drop(self.second(x)), 2))
        x = functional.relu(self.hidden(x.flatten(1)))
        return functional.log_softmax(self.out(x), dim=1)


def pictures(count, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draw)
    images = 0.1 * torch.randn(count, 1, 28, 28, generator=draw)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 4] += 1  # a band at a height of its own
    return TensorDataset(images, labels)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
args, _ = parser.parse_known_args()

hvd.init()
torch.manual_seed(hvd.rank())  # rank 0's weights are sent to all
torch.set_num_threads(1)
train, test = pictures(960, 1), pictures(320, 2)
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
test_sampler = DistributedSampler(test, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = DataLoader(test, batch_size=args.batch_size, sampler=test_sampler)

model = Net()
lr_scaler = hvd.size() if not args.use_adasum else 1
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
    gradient_predivide_factor=args.gradient_predivide_factor,
)

for epoch in range(args.epochs):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        functional.nll_loss(model(data), target).backward()
        optimizer.step()

model.eval()
loss = correct = 0.0
with torch.no_grad():
    for data, target in test_loader:
        output = model(data)
        loss += functional.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(1) == target).float().sum().item()
loss = metric_average(loss / len(test_sampler), "avg_loss")
accuracy = metric_average(correct / len(test_sampler), "avg_accuracy")
if hvd.rank() == 0:
    print(f"test set: average loss {loss:.4f}, accuracy {accuracy:.2%}")

digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
report = Path(os.environ["SM_MODEL_DIR"], f"{hvd.rank()}-of-{hvd.size()}.txt")
report.write_text(f"{accuracy} {digest.hexdigest()}")
