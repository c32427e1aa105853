# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of logits whose vocabulary is split over ranks.

Each rank finds the largest logit of its part, the sum of exponentials relative to it, and the logit
of the target if it is in its part. One all-gather of these few numbers for each token gives every
rank the loss; the backward pass needs no message. The method is that of Megatron-LM (Shoeybi et
al., 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.tensor_splits.peers import Peers


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, target: Tensor, peers: Peers, smoothing: float) -> Tensor:
        logits, rows = _wide(part), part.shape[-1]
        own = target - peers.rank * rows
        is_own = (own >= 0) & (own < rows)
        own = own.masked_fill(~is_own, 0).unsqueeze(-1)
        highest = logits.amax(-1)
        exponentials = (logits - highest.unsqueeze(-1)).exp_().sum(-1)
        hit = logits.gather(-1, own).squeeze(-1).masked_fill(~is_own, 0)
        numbers = [highest, exponentials, hit]
        if smoothing:
            numbers.append(logits.sum(-1))
        everyone = torch.stack(peers.all_gather(torch.stack(numbers)))  # ranks, numbers, tokens
        top = everyone[:, 0].amax(0)
        total = (everyone[:, 1] * (everyone[:, 0] - top).exp()).sum(0)
        normalizer = top + total.log()
        losses: Tensor = normalizer - (1 - smoothing) * everyone[:, 2].sum(0)
        if smoothing:
            losses = losses - smoothing / (rows * peers.size) * everyone[:, 3].sum(0)
        ctx.smoothing, ctx.share = smoothing, smoothing / (rows * peers.size)
        ctx.save_for_backward(part, normalizer, own, is_own)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        part, normalizer, own, is_own = ctx.saved_tensors
        found = (_wide(part) - normalizer.unsqueeze(-1)).exp_()
        hit = is_own.unsqueeze(-1).to(found.dtype) * (ctx.smoothing - 1)
        found.scatter_add_(-1, own, hit)
        if ctx.share:
            found.sub_(ctx.share)
        return found.mul_(grads[0].unsqueeze(-1)).to(part.dtype), None, None, None


def vocab_parallel_cross_entropy(
    part: Tensor,
    target: Tensor,
    peers: Peers,
    *,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """Return `torch.nn.functional.cross_entropy`, equal on all ranks.

    Args:
        part: This rank's part of the logits, of shape (tokens, part of the vocabulary), or of shape
            (part of the vocabulary) for one token.
        target: Numbers of the right classes in the whole vocabulary; shape (tokens) or ().
        peers: Ranks over which the vocabulary is split, in parts of equal size.
        ignore_index: Target whose token does not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: Share of the target's probability that all classes get, 0 to 1.

    Raises:
        IndexError: A target is no class; found on CPUs alone, as in torch.
        RuntimeError: `label_smoothing` is not in 0 to 1.
    """
    num_classes = part.shape[-1] * peers.size
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    counts = target != ignore_index
    if not target.is_cuda:
        wrong = counts & ((target < 0) | (target >= num_classes))
        if wrong.any():
            raise IndexError(f"Target {int(target[wrong][0])} is out of bounds.")
    losses: Tensor = _TokenLosses.apply(  # type: ignore[no-untyped-call]
        part, target.masked_fill(~counts, 0), peers, label_smoothing
    )
    losses = losses.masked_fill(~counts, 0).to(part.dtype) if reduction == "none" else losses
    if reduction == "none":
        return losses
    total = losses.masked_fill(~counts, 0).sum()
    return (total / counts.sum() if reduction == "mean" else total).to(part.dtype)


def _wide(part: Tensor) -> Tensor:
    """Return logits in a type in which their exponentials can be summed."""
    return part if part.dtype is torch.float64 else part.float()
