# SPDX-License-Identifier: Apache-2.0
"""Random values for the copy of a block on which splits are proved, and for its arguments."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.argument_objects import is_cache
from smdist.modelparallel.torch.materialization.skeleton import like, skeleton
from smdist.modelparallel.torch.materialization.skeleton import replace as put
from smdist.modelparallel.torch.tensor_parallel.data_flow import TensorShape
from smdist.modelparallel.torch.tensor_splits.split_modules import is_table

# Random numbers that are drawn for a parameter; a larger one repeats them. The number is prime, so
# that rows, columns and parts of ranks begin at different numbers, and are not alike.
_DRAWN: Final = 1_000_003


def with_values(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a block with random parameters, in training mode."""
    bare = skeleton(block)
    buffers = dict(block.named_buffers(remove_duplicate=False))
    new: dict[int, Tensor] = {}
    for parameter in bare.parameters():
        values = _random(parameter.shape, dtype)
        floats = parameter.is_floating_point()
        made = like(parameter, values if floats else values.to(parameter.dtype))
        new[id(parameter)] = made.requires_grad_(floats)
    for name, buffer in bare.named_buffers(remove_duplicate=False):
        real = buffers[name]
        new.setdefault(id(buffer), _buffer(real, dtype))
    put(bare.modules(), new)
    return bare.train()


def _random(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return normally distributed numbers with a standard deviation of 0.3."""
    count = shape.numel()
    drawn = torch.randn(min(count, _DRAWN), dtype=dtype) * 0.3
    if count > _DRAWN:
        drawn = drawn.repeat(-(-count // _DRAWN))[:count]
    return drawn.view(shape)


def _buffer(real: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values of a buffer; random ones if it is on the meta device."""
    if real.is_meta:
        made = torch.rand(real.shape, dtype=dtype) + 0.5
        return made if real.is_floating_point() else torch.ones(real.shape, dtype=real.dtype)
    values = real.detach().cpu().clone()
    return values.to(dtype) if values.is_floating_point() else values


def random_argument(leaf: Any, block: nn.Module, dtype: torch.dtype, mask: bool) -> Any:
    """Return a random argument like the recorded one; no key-value cache.

    Args:
        leaf: Recorded argument.
        block: Block that gets it.
        dtype: Type of its numbers.
        mask: Value of the elements of masks.
    """
    if is_cache(leaf):
        return None
    if not isinstance(leaf, TensorShape):
        return leaf
    if leaf.dtype.is_floating_point:
        return torch.randn(leaf.size, dtype=dtype).requires_grad_(leaf.has_grad)
    if leaf.dtype is torch.bool:
        return torch.full(leaf.size, mask)
    tables = [each.num_embeddings for each in block.modules() if isinstance(each, nn.Embedding)]
    high = min(tables) if is_table(block) else 1
    return torch.randint(high, leaf.size, dtype=leaf.dtype)
