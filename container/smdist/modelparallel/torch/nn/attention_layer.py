# SPDX-License-Identifier: Apache-2.0
"""Attention of SMP v1: heads, a linear layer, and the residual connection around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.nn.linear_layers import initialize, layer_norm, norm_faults


class DistributedAttentionLayer(nn.Module):
    """Self-attention or cross-attention, a linear layer, dropout and the residual connection.

    Args:
        num_attention_heads: Number of heads of the whole layer.
        attention_head_size: Channels of a head.
        hidden_size: Channels of the input and of the output, H.
        attention_dropout_prob: Probability of dropout on the attention's weights.
        hidden_dropout_prob: Probability of dropout before the residual connection.
        layernorm_epsilon: Number that layer normalizations add to the variance.
        initializer_range: Standard deviation of the weights with `use_normal_initialization`.
        use_normal_initialization: True for normally distributed weights; False for torch's
            initialization.
        cross_attention: True to compute keys and values from `cross_states`.
        causal_mask_size: Greatest length of a sequence in which a position attends to earlier ones
            only; None for attention to all positions.
        pre_layernorm: True to normalize the input.
        post_layernorm: True to normalize the output.

    Raises:
        OptionError: Both layer normalizations are off.
    """

    causal_mask: Tensor | None

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        cross_attention: bool = False,
        causal_mask_size: int | None = None,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
    ) -> None:
        raise_all(norm_faults(type(self).__name__, pre=pre_layernorm, post=post_layernorm))
        super().__init__()
        self.num_attention_heads, self.attention_head_size = (
            num_attention_heads,
            attention_head_size,
        )
        self.cross_attention = cross_attention
        width = num_attention_heads * attention_head_size
        self.query = nn.Linear(hidden_size, width)
        self.key = nn.Linear(hidden_size, width)
        self.value = nn.Linear(hidden_size, width)
        self.dense = nn.Linear(width, hidden_size)
        layers = (self.query, self.key, self.value, self.dense)
        initialize(layers, use_normal_initialization, initializer_range)
        self.dropout1 = nn.Dropout(attention_dropout_prob)
        self.dropout2 = nn.Dropout(hidden_dropout_prob)
        self.pre_layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=pre_layernorm)
        self.layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=post_layernorm)
        self.register_buffer("causal_mask", _later(causal_mask_size), persistent=False)

    def forward(self, inputs: tuple[Any, ...]) -> Tensor:
        """Return the output of the layer, of shape [N, S, H].

        Args:
            inputs: `(hidden_states, attention_mask)` or, with `cross_attention`, `(hidden_states,
                cross_states, attention_mask)`. States are of shape [N, S, H]. The mask is added to
                the scores: it is of a shape such as [N, 1, 1, S], S being the length of the
                sequence that is attended to; None for no mask.
        """
        hidden, *others, mask = inputs
        states = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
        attended = others[0] if self.cross_attention else states
        query, key, value = (
            self._heads(layer(each))
            for layer, each in (
                (self.query, states),
                (self.key, attended),
                (self.value, attended),
            )
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size)
        if self.causal_mask is not None and not self.cross_attention:
            rows, columns = scores.shape[-2:]
            later = self.causal_mask[columns - rows : columns, :columns]
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        if mask is not None:
            scores = scores + mask
        weights = self.dropout1(functional.softmax(scores, -1))
        context = (weights @ value).transpose(1, 2).flatten(2)
        output: Tensor = hidden + self.dropout2(self.dense(context))
        found: Tensor = output if self.layernorm is None else self.layernorm(output)
        return found

    def _heads(self, states: Tensor) -> Tensor:
        """Return states of shape [N, S, heads x size] as [N, heads, S, size]."""
        shape = (*states.shape[:-1], self.num_attention_heads, self.attention_head_size)
        return states.reshape(shape).transpose(1, 2)


class FlashAttentionLayer(nn.Module):
    """Attention of heads that are computed already, by `scaled_dot_product_attention` of torch.

    Args:
        attention_dropout_prob: Probability of dropout on the attention's weights.
        attention_head_size: Channels of a head; None to read them from the input.
        scale_attention_scores: True to divide scores by the square root of the head's size.
        scale_attn_by_layer_idx: True to divide scores by `layer_idx + 1`, too.
        layer_idx: Number of the layer, from 0; needed with `scale_attn_by_layer_idx`.
        scale: Factor of the scores; None to compute it from the arguments before.
        triton_flash_attention: No effect: torch selects the kernel.
        use_alibi: Must be False.

    Raises:
        OptionError: `use_alibi` is True, or `layer_idx` is missing.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.1,
        attention_head_size: int | None = None,
        scale_attention_scores: bool = True,
        scale_attn_by_layer_idx: bool = False,
        layer_idx: int | None = None,
        scale: float | None = None,
        triton_flash_attention: bool = False,  # noqa: ARG002  torch selects the kernel
        use_alibi: bool = False,
    ) -> None:
        needs_number = scale_attn_by_layer_idx and layer_idx is None
        raise_all([*alibi_faults(use_alibi), *_number_faults(needs_number)])
        super().__init__()
        self.attention_dropout_prob, self.scale = attention_dropout_prob, scale
        self.attention_head_size = attention_head_size
        self._divides = scale_attention_scores
        self._divisor = (layer_idx or 0) + 1 if scale_attn_by_layer_idx else 1

    def forward(self, qkv: Tensor, attn_mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Return the output of all heads, of shape [N, S, heads x size].

        Args:
            qkv: Queries, keys and values, of shape [N, S, 3, heads, size].
            attn_mask: Mask that is added to the scores; None for no mask.
            causal: True if a position attends to earlier positions only.
        """
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        size = self.attention_head_size or qkv.shape[-1]
        scale = self.scale
        if scale is None:
            scale = (1 / math.sqrt(size) if self._divides else 1.0) / self._divisor
        if causal and attn_mask is not None:
            length = qkv.shape[1]
            later = _later(length).to(qkv.device)  # type: ignore[union-attr]  # length is an int
            attn_mask = attn_mask.to(qkv.dtype).masked_fill(later, torch.finfo(qkv.dtype).min)
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, scale=scale,
            dropout_p=self.attention_dropout_prob if self.training else 0.0,
            is_causal=causal and attn_mask is None,
        )  # fmt: skip
        return found.transpose(1, 2).flatten(2)


def alibi_faults(use_alibi: bool) -> Iterator[OptionError]:
    """Yield a fault if attention with linear biases is wanted."""
    if use_alibi:
        yield OptionError(
            "use_alibi is True",
            "attention with linear biases needs a bias for each head, which no layer here adds",
            "Leave it out, and add the biases to attention_mask",
            about="use_alibi",
            kind="unsupported",
        )


def _number_faults(needs_number: bool) -> Iterator[OptionError]:
    if needs_number:
        yield OptionError(
            "scale_attn_by_layer_idx is True, and layer_idx is None",
            "the scores are divided by the number of the layer",
            "Pass layer_idx, counted from 0",
            about="layer_idx",
            kind="missing",
        )


def _later(size: int | None) -> Tensor | None:
    """Return a table that is True where a column is later than the row; None without a size."""
    return None if size is None else torch.ones(size, size, dtype=torch.bool).triu(1)
