# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 loop in the shape of AWS's scripts for SMP v1: only the import is ours."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel

import smdist.modelparallel.torch as smp


@smp.step
def train_step(model, input_ids, attention_mask):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


@smp.step
def test_step(model, input_ids, attention_mask):
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]


def sentences(args, *, seed):
    """Counting up or down from somewhere: a model that learns sees it soon."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(args.vocabulary, (args.samples, 1), generator=generator)
    steps = torch.randint(1, 3, (args.samples, 1), generator=generator)
    ids = (starts + steps * torch.arange(args.length)) % args.vocabulary
    return TensorDataset(ids, torch.ones_like(ids))


def model_of(args):
    config = GPT2Config(
        vocab_size=args.vocabulary, n_positions=args.length, n_embd=32, n_layer=4, n_head=2,
        use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def groups_of(model, weight_decay):
    """Biases and norms do not decay."""
    is_plain = lambda name: "bias" in name or "ln_" in name  # noqa: E731
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if not is_plain(n)], "weight_decay": weight_decay},
        {"params": [p for n, p in named if is_plain(n)], "weight_decay": 0.0},
    ]


def train(args, model, optimizer, scheduler):
    dataset = sentences(args, seed=0)
    sampler = DistributedSampler(
        dataset, shuffle=True, seed=0, rank=smp.dp_rank(), num_replicas=smp.dp_size(),
        drop_last=True,
    )  # fmt: skip
    loader = DataLoader(dataset, args.train_batch_size, sampler=sampler, drop_last=True)
    start = total_steps = resume(args, scheduler)
    losses = []
    while total_steps < args.max_steps:
        sampler.set_epoch(total_steps // len(loader))
        for index, (input_ids, attention_mask) in enumerate(loader):
            if total_steps >= args.max_steps:
                break
            if index < total_steps % len(loader):
                continue
            model.train()
            optimizer.zero_grad(set_to_none=True)
            loss = train_step(model, input_ids, attention_mask).reduce_mean()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            total_steps += 1
            losses.append(loss.item())
            if total_steps % args.checkpoint_freq == 0:
                checkpoint(args, model, optimizer, scheduler, total_steps)
    return {"start": start, "losses": losses, "evaluation": evaluate(args, model)}


def evaluate(args, model):
    model.eval()
    losses = []
    with torch.no_grad():
        for input_ids, attention_mask in DataLoader(sentences(args, seed=1), args.train_batch_size):
            losses.append(test_step(model, input_ids, attention_mask).reduce_mean().item())
    return float(np.mean(losses))


def checkpoint(args, model, optimizer, scheduler, total_steps):
    smp.save_checkpoint(
        args.checkpoint_dir,
        tag=f"total_steps{total_steps}",
        partial=bool(args.partial),
        model=model,
        optimizer=optimizer,
        user_content={"total_steps": total_steps, "lr_scheduler": scheduler.state_dict()},
        num_kept_partial_checkpoints=args.num_kept_checkpoints if args.partial else None,
    )


def resume(args, scheduler):
    if not any(Path(args.checkpoint_dir).glob("*")):
        return 0
    content = smp.resume_from_checkpoint(
        args.checkpoint_dir, tag=args.load_tag, partial=bool(args.partial)
    )
    scheduler.load_state_dict(content["lr_scheduler"])
    return content["total_steps"]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=8)
    parser.add_argument("--checkpoint-freq", type=int, default=4)
    parser.add_argument("--num-kept-checkpoints", type=int, default=2)
    parser.add_argument("--train-batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=64)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--partial", type=int, default=1)
    parser.add_argument("--load-tag")  # the newest one by default
    parser.add_argument("--checkpoint-dir", default=os.environ.get("SM_CHECKPOINT_DIR"))
    parser.add_argument("--results", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR"))
    return parser.parse_args()


def main():
    args = arguments()
    smp.init()
    torch.manual_seed(0)
    with smp.model_creation(dtype=torch.float32):
        model = model_of(args)
    model = smp.DistributedModel(model, trace_device="cpu")
    optimizer = torch.optim.AdamW(groups_of(model, 0.01), lr=args.lr, betas=(0.9, 0.95))
    optimizer = smp.DistributedOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))
    report = train(args, model, optimizer, scheduler)
    if args.results:
        (args.results / f"report-{smp.rank()}.json").write_text(json.dumps(report))
    smp.barrier()


if __name__ == "__main__":
    main()
