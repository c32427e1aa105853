# SPDX-License-Identifier: Apache-2.0
"""Script that trains a split model, and goes on from its newest whole checkpoint."""

import argparse
import os
from pathlib import Path

import torch
from split import WIDTH, build, train_step

import smdist.checkpoint
import smdist.modelparallel.torch as smp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--save-every", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    smp.init()
    model = smp.DistributedModel(build())
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3))
    folder, done = os.environ["SM_CHECKPOINT_DIR"], 0
    try:
        done = smp.resume_from_checkpoint(folder)["step"]
        print(f"resumes after step {done}", flush=True)
    except smp.NoCheckpointError:
        pass

    def save():
        smp.save_checkpoint(
            folder,
            f"step-{done}",
            model=model,
            optimizer=optimizer,
            user_content={"step": done},
            num_kept_partial_checkpoints=2,
        )

    smdist.checkpoint.on_interrupt(save)
    while done < args.steps:
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(done))
        optimizer.zero_grad()
        train_step(model, inputs, inputs.sum(1, keepdim=True)).reduce_mean()
        optimizer.step()
        done += 1
        if done % args.save_every == 0:
            save()
        smdist.checkpoint.step()
    state = model.state_dict()
    if smp.rank() == 0:
        torch.save(state, Path(os.environ["SM_MODEL_DIR"], "model.pt"))
    smp.barrier()


if __name__ == "__main__":
    main()
