# SPDX-License-Identifier: Apache-2.0
"""Train with transformers' Trainer so that neither a restart nor an interruption loses the work.

The weights at the end have the same bits as those of a run without them: a checkpoint of the
Trainer has model, optimizer, scheduler, position in the data, and the random state of each rank.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers

import smdist.checkpoint
import smdist.dataparallel.torch  # registers the backend "smdist"


class Checkpoints(transformers.TrainerCallback):
    """Save and end on all ranks after the same step, if any of them has received SIGTERM."""

    def on_step_end(self, args, state, control, **others):  # noqa: ARG002  as it is called
        """Compare the ranks after each step."""
        if smdist.checkpoint.should_stop():
            control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, model=None, **others):  # noqa: ARG002
        """Save the model where hosts have a folder each: the Trainer does so on rank 0 alone."""
        if args.save_on_each_node and args.local_process_index == 0 and args.process_index > 0:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            torch.save(model.state_dict(), folder / "new")
            (folder / "new").replace(folder / "pytorch_model.bin")


def newest_checkpoint(folder: Path) -> str | None:
    """Return the newest checkpoint that is whole on every rank; None if there is none.

    The Trainer writes the files of a checkpoint one by one: an attempt that was killed while it
    saved has left a part of them. The model comes first on rank 0, and last on other hosts.
    """
    needed = ("trainer_state.json", f"rng_state_{dist.get_rank()}.pth")
    models = ("model.safetensors", "pytorch_model.bin")
    found = [
        int(each.name.split("-")[1])
        for each in folder.glob("checkpoint-*")
        if all((each / name).exists() for name in needed)
        and any((each / name).exists() for name in models)
    ]
    of_ranks = [[]] * dist.get_world_size()
    dist.all_gather_object(of_ranks, found)
    whole = set.intersection(*map(set, of_ranks))
    return str(folder / f"checkpoint-{max(whole)}") if whole else None


def train(
    folder: Path, steps: int, save_every: int, *, on_each_host: bool = False
) -> transformers.Trainer:
    """Train a small model from the newest checkpoint in `folder`, and return its Trainer.

    `on_each_host`: hosts have folders of their own, as on SageMaker; on one machine they share it.
    """
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(64, (512, 16), generator=torch.Generator().manual_seed(1))
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            save_steps=save_every,  # what a restart after a failure resumes from
            save_total_limit=3,
            save_on_each_node=on_each_host,
            per_device_train_batch_size=4,
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
        callbacks=[Checkpoints()],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    return trainer


def main() -> None:
    """Train `--steps` steps, and save the model; exit with 143 after an interruption."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--on-each-host", type=int, default=0, help="1 on SageMaker")
    args = parser.parse_args()
    dist.init_process_group("smdist")  # before TrainingArguments, which would take another one
    folder, on_each_host = Path(os.environ["SM_CHECKPOINT_DIR"]), bool(args.on_each_host)
    trainer = train(folder, args.steps, args.save_every, on_each_host=on_each_host)
    if smdist.checkpoint.should_stop():  # no communication after the first True
        sys.exit(smdist.checkpoint.EXIT_CODE)
    trainer.save_model(os.environ["SM_MODEL_DIR"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
