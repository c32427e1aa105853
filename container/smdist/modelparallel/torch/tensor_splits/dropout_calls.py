# SPDX-License-Identifier: Apache-2.0
"""Calls of torch's functions with dropout that draw the mask of the whole tensor.

Fused attention (`scaled_dot_product_attention`) draws the mask of its weights by itself. On CPUs,
torch computes attention with dropout in single steps, and so does `attended`, with the mask of the
heads of all ranks. On accelerators, a kernel draws other numbers, so such attention stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from math import sqrt
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sagemaker_dist.errors import require
from smdist.modelparallel.torch.tensor_splits.split_dropout import SplitDraw, dropped

_HALVES: Final = (torch.bfloat16, torch.float16)
_DEFAULTS: Final = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
_NAMED: Final = {"scale": None, "enable_gqa": False}
_SIGNATURE: Final = Signature(
    [
        *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("query", "key", "value")),
        *(Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=v) for n, v in _DEFAULTS.items()),
        *(Parameter(n, Parameter.KEYWORD_ONLY, default=v) for n, v in _NAMED.items()),
    ]
)  # torch's function has no signature that can be read


class DropoutCalls(TorchFunctionMode):
    """Mode in which some calls of torch's functions draw the numbers of the whole tensor.

    The functions are dropout and fused attention.

    Args:
        draws: This rank's part of the numbers, by the number of the call in this mode.

    Attributes:
        shapes: Shape of the tensor to which each call in training applies dropout, by its number:
            the input, or the weights of attention (..., heads, queries, keys).
        attentions: Numbers of the calls among them that are fused attention.
    """

    def __init__(self, draws: Mapping[int, SplitDraw]) -> None:
        super().__init__()
        self._draws = draws
        self._count = 0
        self.shapes: dict[int, torch.Size] = {}
        self.attentions: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function of torch and return its result."""
        given = dict(kwargs or {})
        if func is functional.dropout:
            return self._dropout(*args, **given)
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **given)
        return func(*args, **given)

    def _dropout(self, *args: Any, **kwargs: Any) -> Tensor:
        number, self._count = self._count, self._count + 1
        if kwargs.get("training", True):
            self.shapes[number] = args[0].shape
        if number in self._draws:
            return dropped(self._draws[number], *args, **kwargs)
        return functional.dropout(*args, **kwargs)

    def _attention(self, *args: Any, **kwargs: Any) -> Tensor:
        number, self._count = self._count, self._count + 1
        bound = _SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if given["dropout_p"]:
            query, key = given["query"], given["key"]
            self.shapes[number] = torch.Size((*query.shape[:-1], key.shape[-2]))
            self.attentions.add(number)
            if number in self._draws:
                return attended(self._draws[number], **given)
        return functional.scaled_dot_product_attention(*args, **kwargs)


def attended(
    draw: SplitDraw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return `scaled_dot_product_attention` of this rank's heads, on a CPU.

    The other arguments are those of torch's function; 16-bit values are computed in float32, as
    there.

    Args:
        draw: This rank's part of the mask for the weights (..., heads, queries, keys).
        query, key, value: Heads of this rank, of shape (..., heads, positions, width).

    Raises:
        OptionError: The tensors are on an accelerator, whose kernel draws other numbers.
    """
    _check_device(query.device, dropout_p)
    dtype = query.dtype
    if dtype in _HALVES:
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
    factor = 1.0 / sqrt(query.size(-1)) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = torch._safe_softmax(_masked(scores, attn_mask), -1)  # 0 where no key is seen
    return (dropped(draw, weights, dropout_p) @ value).to(dtype)


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores with a mask: False hides a key, and numbers are added."""
    if mask is None:
        return scores
    if mask.dtype is torch.bool:
        return scores.masked_fill(mask.logical_not(), -torch.inf)
    return scores + mask


def _check_device(device: torch.device, dropout_p: float) -> None:
    require(
        device.type in ("cpu", "meta"),
        what=f"fused attention with dropout_p={dropout_p} got split heads on {device.type}",
        why="its kernel draws the mask by itself, and another one for a part than for the whole",
        hint="Move the model to its device before the first step, so that this attention stays"
        " whole",
        about="dropout_p",
        kind="accelerator",
    )
