# SPDX-License-Identifier: Apache-2.0
"""Attention of torch (`nn.MultiheadAttention`), of which each rank computes some heads.

Its own forward function calls none of its products as modules, and checks that their weights are
whole. So this one takes its place, with the same arguments and results.
"""

from __future__ import annotations

import math
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from smdist.modelparallel.torch.tensor_splits.dropout_calls import attended
from smdist.modelparallel.torch.tensor_splits.region_borders import joined, summed
from smdist.modelparallel.torch.tensor_splits.region_entry import RegionEntry
from smdist.modelparallel.torch.tensor_splits.split_dropout import SplitDraw, dropped

_SIGNATURE: Final = signature(nn.MultiheadAttention.forward)
_HEADS: Final = 1  # dimension of heads, of (batch, heads, queries, keys)


class SplitAttention(nn.MultiheadAttention):
    """Attention over this rank's heads; outputs are summed over ranks."""

    _smp_entry: RegionEntry

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the whole output, and the weights of attention if they are wanted.

        Arguments and results are those of `nn.MultiheadAttention`.
        """
        bound = _SIGNATURE.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if given["is_causal"] and given["attn_mask"] is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        query = given["query"]
        q, k, v = self._heads(query, given["key"], given["value"])
        padding, needs_weights = given["key_padding_mask"], given["need_weights"]
        is_causal = given["is_causal"] and padding is None and not needs_weights
        # then torch takes its own causal mask, whatever attn_mask has
        mask = None if is_causal else self._mask(given["attn_mask"], padding, q)
        weights, rate = None, self.dropout if self.training else 0.0
        if needs_weights:
            scores = (q * (1.0 / math.sqrt(self.head_dim))) @ k.transpose(-2, -1)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            if rate:
                weights = dropped(self._draw(), weights, rate)
            found = weights @ v
        elif rate:
            found = attended(self._draw(), q, k, v, mask, dropout_p=rate, is_causal=is_causal)
        else:
            found = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=is_causal
            )
        is_average = given["average_attn_weights"]
        return self._whole(found, query), self._whole_weights(weights, query, is_average)

    def _draw(self) -> SplitDraw:
        """Return this rank's part of a mask for weights of attention of all heads."""
        peers = self._smp_entry.peers
        return SplitDraw(_HEADS, peers.size, peers.rank)

    def _heads(self, *inputs: Tensor) -> list[Tensor]:
        """Return queries, keys and values of this rank, as (batch, heads, length, width)."""
        fused: Tensor | None = self.in_proj_weight
        apart = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        products = apart if fused is None else list(fused.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        found = []
        for each, product, bias in zip(inputs, products, biases, strict=True):
            x = functional.linear(self._smp_entry.enter(each), product, bias)
            x = x.unsqueeze(0) if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)
            found.append(x.reshape(*x.shape[:-1], -1, self.head_dim).transpose(1, 2))
        self._smp_entry.leave()
        return found

    def _mask(self, attention: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """Return the sum of both masks for this rank's heads, or None."""
        peers, parts = self._smp_entry.peers, []
        if attention is not None:
            mask = _as_numbers(attention, q.dtype)
            if mask.dim() == 3:
                by_head = mask.reshape(-1, self.num_heads, *mask.shape[1:])
                mask = by_head.chunk(peers.size, 1)[peers.rank]
            parts.append(mask)
        if padding is not None:
            numbers = _as_numbers(padding, q.dtype)
            parts.append((numbers.unsqueeze(0) if numbers.dim() == 1 else numbers)[:, None, None])
        return sum(parts[1:], parts[0]) if parts else None

    def _whole(self, found: Tensor, query: Tensor) -> Tensor:
        """Return the output of all ranks' heads, in the layout of the query.

        Its memory has the order of torch's own, positions first, which dropout after it follows.
        """
        own = functional.linear(found.permute(2, 0, 1, 3).flatten(2), self.out_proj.weight)
        is_first = self.batch_first and query.dim() == 3
        peers = self._smp_entry.peers
        output = self._smp_entry.reduced(own.transpose(0, 1)) if is_first else summed(own, peers)
        if self.out_proj.bias is not None:
            output = output + self.out_proj.bias
        return output.squeeze(1) if query.dim() == 2 else output

    def _whole_weights(
        self, weights: Tensor | None, query: Tensor, is_average: bool
    ) -> Tensor | None:
        if weights is None:
            return None
        peers = self._smp_entry.peers
        if is_average:
            found = summed(weights.sum(1) / self.num_heads, peers)
        else:
            found = joined(weights, peers, 1)
        return found.squeeze(0) if query.dim() == 2 else found


def is_attention(module: nn.Module) -> bool:
    """Return True for a `nn.MultiheadAttention` of no other forward."""
    own = nn.MultiheadAttention.forward
    return isinstance(module, nn.MultiheadAttention) and type(module).forward is own


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers that are added to scores; True stands for what is hidden."""
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
