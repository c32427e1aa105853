# SPDX-License-Identifier: Apache-2.0
"""Train on handwritten digits with DistributedDataParallel, like any SageMaker script.

The two lines that are not plain PyTorch are marked with <--.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from net import build
from smdist.dataparallel.torch import DistributedDataParallel  # <-- torch.nn.parallel before
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

stop_requested = False


def main() -> None:
    """Train, resume from a checkpoint if there is one, save the model."""
    args = parse_args()
    dist.init_process_group("smdist")  # <-- "gloo" or "nccl" before
    signal.signal(signal.SIGTERM, request_stop)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    train(model, optimizer, args)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.model_dir / "model.pt")
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    """Parse hyperparameters from arguments, and directories from SM_* variables."""
    env = os.environ
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.07)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--training", type=Path, default=env["SM_CHANNEL_TRAINING"])
    parser.add_argument("--model-dir", type=Path, default=env["SM_MODEL_DIR"])
    parser.add_argument("--checkpoint-dir", type=Path, default=env["SM_CHECKPOINT_DIR"])
    return parser.parse_args()


def train(model, optimizer, args) -> None:
    """Run the epochs that remain; if the job is stopped, all ranks stop at the same step."""
    train_set, test_set = load(args.training / "train.npz"), load(args.training / "test.npz")
    sampler = DistributedSampler(train_set, seed=args.seed, drop_last=True)
    batch_size = args.batch_size // dist.get_world_size()
    loader = DataLoader(train_set, batch_size, sampler=sampler, drop_last=True)
    done = load_checkpoint(model, optimizer, args.checkpoint_dir)
    first_epoch, first_step = divmod(done, len(loader))
    bar = tqdm(total=args.epochs * len(loader), initial=done, unit="step",
               desc="train", disable=dist.get_rank() != 0, ncols=60)  # fmt: skip
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for step, (pictures, labels) in enumerate(loader):
            if epoch == first_epoch and step < first_step:
                continue  # trained before the checkpoint
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update()
            done += 1
            if any_rank_must_stop():
                save_checkpoint(model, optimizer, args.checkpoint_dir, done)
                dist.destroy_process_group()
                sys.exit(128 + signal.SIGTERM)
        report(bar, model, test_set, epoch, loss)
        save_checkpoint(model, optimizer, args.checkpoint_dir, done)
    bar.close()


def load(path: Path) -> TensorDataset:
    """Return pictures as float [n, 1, 8, 8] in 0..1, and labels as int64 [n]."""
    arrays = np.load(path)
    return TensorDataset(torch.from_numpy(arrays["pictures"]), torch.from_numpy(arrays["labels"]))


@torch.no_grad()
def report(bar, model, test_set, epoch: int, loss) -> None:
    """Print the loss, averaged over ranks, and the accuracy on the test set.

    Each rank evaluates its share of the test set.
    """
    pictures, labels = (t[dist.get_rank() :: dist.get_world_size()] for t in test_set.tensors)
    right = (model.module(pictures).argmax(1) == labels).sum().item()
    totals = torch.tensor([loss.item(), right, len(labels)], dtype=torch.float64)
    dist.all_reduce(totals)
    if dist.get_rank() == 0:
        loss, accuracy = totals[0] / dist.get_world_size(), totals[1] / totals[2]
        bar.write(f"epoch {epoch + 1:2d}  loss {loss:.4f}  test accuracy {accuracy:.4f}")


def request_stop(*_) -> None:
    """Handle SIGTERM, which SageMaker sends to stop a job or to reclaim a spot instance."""
    global stop_requested
    stop_requested = True


def any_rank_must_stop() -> bool:
    """Return whether any rank has received SIGTERM; all ranks return the same at each step."""
    requested = torch.tensor(int(stop_requested))
    dist.all_reduce(requested, op=dist.ReduceOp.MAX)
    return bool(requested)


def save_checkpoint(model, optimizer, folder: Path, step: int) -> None:
    """Save a checkpoint from rank 0; the complete new file replaces the old one."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step}, folder / "new.pt")
        (folder / "new.pt").replace(folder / "checkpoint.pt")
    dist.barrier()


def load_checkpoint(model, optimizer, folder: Path) -> int:
    """Load the checkpoint if it exists, and return the number of completed steps, 0 without it."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return 0
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if dist.get_rank() == 0:
        print(f"resuming after step {state['step']}")
    return state["step"]


if __name__ == "__main__":
    main()
