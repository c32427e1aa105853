# SPDX-License-Identifier: Apache-2.0
"""Train so that neither a restart nor an interruption loses anything: the weights have the same
bits as those of a run without them.

Everything that the next step depends on is in one file: model, optimizer, number of steps, and the
random state of each rank. Rank 0 writes it beside the old one and then replaces that one, so that
no reader ever sees half a file.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smdist.checkpoint
import smdist.dataparallel.torch  # registers the backend "smdist"

CHECKPOINT = "checkpoint.pt"


class Training:
    """Model, optimizer and position of a run, and the checkpoint that has all of them."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        layers = (nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.folder = folder
        self.done = 0  # steps

    def train_step(self) -> None:
        """Train one batch, which depends on the number of the step and on the rank alone."""
        place = self.done * dist.get_world_size() + dist.get_rank()
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(place))
        loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1

    def save(self) -> None:
        """Save a checkpoint; all ranks call it after the same step."""
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, torch.get_rng_state())
        if dist.get_rank() == 0:
            content = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "done": self.done,
                "random": states,
            }
            self.folder.mkdir(parents=True, exist_ok=True)
            torch.save(content, self.folder / "new.pt")
            (self.folder / "new.pt").replace(self.folder / CHECKPOINT)
        dist.barrier()  # no rank ends before the file is there

    def resume(self) -> None:
        """Load the checkpoint, if there is one; all ranks call it.

        Rank 0 reads the file, which it wrote: on SageMaker each host has a folder of its own.
        """
        path = self.folder / CHECKPOINT
        has_one = dist.get_rank() == 0 and path.exists()
        found = [torch.load(path) if has_one else None]
        dist.broadcast_object_list(found)
        if (content := found[0]) is None:
            return
        self.model.module.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.done = content["done"]
        torch.set_rng_state(content["random"][dist.get_rank()])


def main() -> None:
    """Train `--steps` steps, from the checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()
    dist.init_process_group("smdist")
    training = Training(Path(os.environ["SM_CHECKPOINT_DIR"]))
    training.resume()
    smdist.checkpoint.on_interrupt(training.save)
    while training.done < args.steps:
        training.train_step()
        if training.done % args.save_every == 0:
            training.save()  # what a restart after a failure resumes from
        smdist.checkpoint.step()  # what an interruption is noticed by
    if dist.get_rank() == 0:
        torch.save(training.model.module.state_dict(), Path(os.environ["SM_MODEL_DIR"], "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
