# SPDX-License-Identifier: Apache-2.0
"""One run of a block, forward and backward, with the numbers that a proof compares."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.program.pytree import flatten, map_leaves
from smdist.modelparallel.torch.tensor_parallel.simulated_peers import NumberedDraws
from smdist.modelparallel.torch.tensor_splits import (
    DropoutCalls,
    Peers,
    is_dropout,
    sliced_sequence,
    whole_sequences,
)


@dataclass(slots=True)
class BlockRun:
    """Numbers of one run of a block, and the random operations in it.

    Attributes:
        outputs: Tensors in the output of the block, by the numbers of their leaves.
        input_grads: Gradients of its inputs.
        draws: Name, and numbers of elements, of each random operation.
        dropped: Shape of the input of each `nn.Dropout`, by its name; of the last call.
        calls: Shape of what each call of torch's functions with dropout drops, by its number.
        attentions: Numbers of the calls among them that are fused attention.
    """

    outputs: dict[int, Tensor]
    input_grads: list[Tensor]
    draws: list[Any]
    dropped: dict[str, torch.Size]
    calls: dict[int, torch.Size]
    attentions: set[int]


def run_block(
    block: nn.Module, call: Any, unused: Collection[int], slices: Peers | None = None
) -> BlockRun:
    """Run a block forward and backward, and return its numbers.

    Args:
        block: Block that can run alone.
        call: Positional and keyword arguments of its call.
        unused: Numbers of the leaves of its output that do not count in the loss.
        slices: Ranks that have slices of sequences, so that the block gets this rank's slices;
            None for whole sequences.
    """
    args, kwargs = map_leaves(_fresh, call)
    given = (args, kwargs)
    if slices is not None:
        given = map_leaves(partial(sliced_sequence, peers=slices), given)
    dropped: dict[str, torch.Size] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, dropped, name))
        for name, module in block.named_modules()
        if is_dropout(module)
    ]
    with torch.enable_grad(), NumberedDraws() as draws, DropoutCalls({}) as calls:
        found, _ = flatten(whole_sequences(block(*given[0], **given[1])))
        outputs = {at: each for at, each in enumerate(found) if isinstance(each, Tensor)}
        traced = [each for at, each in outputs.items() if each.requires_grad and at not in unused]
        loss = sum((each.double() * _weights(each)).sum() for each in traced)
        assert isinstance(loss, Tensor), "the block has no output with a gradient"
        loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    inputs = [each for each in flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    grads = [each.grad if each.grad is not None else each.new_zeros(()) for each in inputs]
    values = {at: each.detach() for at, each in outputs.items()}
    return BlockRun(values, grads, draws.numbers, dropped, calls.shapes, calls.attentions)


def _note(dropped: dict[str, torch.Size], name: str, _: nn.Module, inputs: Any) -> None:
    """Forward pre-hook of a dropout: record the shape of its input."""
    dropped[name] = inputs[0].shape


def _fresh(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _weights(output: Tensor) -> Tensor:
    """Return fixed weights by which the elements of an output count in the loss."""
    return torch.linspace(-1.0, 2.0, output.numel(), dtype=torch.float64).view(output.shape).cos()
