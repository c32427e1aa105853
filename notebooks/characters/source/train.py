# SPDX-License-Identifier: Apache-2.0
"""Train a GPT over characters; the job sets the number of stages and replicas.

The lines that are not plain PyTorch are marked with <--.
"""

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path

import smdist.modelparallel.torch as smp  # <--
import torch
from net import build, loss_of
from text import batch, load


@smp.step  # <-- runs for every microbatch
def train_step(model, ids, targets):
    loss = loss_of(model(ids), targets)
    model.backward(loss)  # <-- loss.backward() before
    return loss


def main() -> None:
    """Train, resume from a checkpoint if there is one, save the model."""
    args = parse_args()
    smp.init()  # <--
    text = load(args.training)
    model = smp.DistributedModel(build())  # <--
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = smp.DistributedOptimizer(optimizer)  # <--
    first, losses = resume(args.checkpoint_dir), []
    mine = slice(smp.dp_rank(), None, smp.dp_size())  # <-- of every batch
    for step in range(first, args.steps):
        ids, targets = batch(text, step, args.batch_size)
        optimizer.zero_grad()
        with model.traced() if step >= args.steps - 3 else nullcontext() as trace:  # <--
            loss = train_step(model, ids[mine], targets[mine]).reduce_mean()
        optimizer.step()
        losses.append(mean_over_replicas(loss))
        if smp.rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}  loss: {losses[-1]:.4f}", flush=True)
    save(args, model, optimizer, {"first": first, "losses": losses})
    draw(args, trace.gather())  # <--


def mean_over_replicas(loss) -> float:
    """Return the mean loss over all replicas; `loss` is that of this rank's replica."""
    losses = smp.allgather(loss.item(), smp.DP_GROUP)  # <--
    return sum(losses) / len(losses)


def parse_args() -> argparse.Namespace:
    """Parse hyperparameters from arguments, and directories from SM_* variables."""
    env = os.environ
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32, help="over all replicas")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--training", type=Path, default=env.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--model-dir", type=Path, default=env.get("SM_MODEL_DIR"))
    parser.add_argument("--output-dir", type=Path, default=env.get("SM_OUTPUT_DATA_DIR"))
    parser.add_argument("--checkpoint-dir", type=Path, default=env.get("SM_CHECKPOINT_DIR"))
    return parser.parse_args()


def resume(folder: Path) -> int:
    """Load the newest checkpoint and return its step, or 0 without a checkpoint.

    Another number of ranks may have saved it.
    """
    try:
        return smp.resume_from_checkpoint(folder)["step"]  # <--
    except smp.NoCheckpointError:
        return 0


def save(args, model, optimizer, report) -> None:
    """Save a checkpoint, which any number of ranks can load; the whole model; and the losses."""
    step = args.steps
    smp.save_checkpoint(
        args.checkpoint_dir, tag=f"step-{step}", model=model, optimizer=optimizer,
        user_content={"step": step},
    )  # fmt: skip  # <--
    smp.export(args.model_dir, model)  # <--
    if smp.rank() == 0:
        (args.model_dir / "losses.json").write_text(json.dumps(report))


def draw(args, run) -> None:
    """Save a trace of the last steps and a picture of it, and print what the simulator predicts."""
    if smp.rank() == 0:
        run.save(args.output_dir / "trace.json")
        run.plot(args.output_dir / "timeline.png")
        print(run.replay())


if __name__ == "__main__":
    main()
