# SPDX-License-Identifier: Apache-2.0
"""Transformer of SMP v1 with embeddings before it and a head for language modelling behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from smdist.modelparallel.torch.nn.linear_layers import DistributedEmbedding
from smdist.modelparallel.torch.nn.transformer_layers import DistributedTransformer


class DistributedTransformerLMHead(nn.Module):
    """Embeddings of words, positions and types, a Transformer, and a head tied to the words.

    The sum of the embeddings passes a dropout. If layers normalize their input alone, the output of
    the last layer is normalized before the head, as in GPT-2.

    Args:
        num_layers, num_attention_heads, attention_head_size: As of `DistributedTransformer`.
        hidden_size, intermediate_size, activation, layernorm_epsilon: As there.
        attention_dropout_prob, hidden_dropout_prob, causal_mask_size: As there.
        add_cross_attention, initializer_range, use_normal_initialization: As there.
        pre_layernorm, post_layernorm, options: As there.
        vocab_size: Number of words.
        num_positions: Greatest length of a sequence.
        num_token_types: Number of types of tokens; 0 for none.
        add_lm_head: True for scores of all words; False for the hidden states.

    Raises:
        OptionError: Arguments contradict each other, or are not supported.
    """

    positions: Tensor

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        num_token_types: int = 0,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        add_lm_head: bool = True,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()

        def table(rows: int) -> DistributedEmbedding:
            return DistributedEmbedding(rows, hidden_size, initializer_range=initializer_range)

        self.add_cross_attention, self.is_causal = add_cross_attention, causal_mask_size is not None
        self.word_embedding, self.position_embedding = table(vocab_size), table(num_positions)
        self.token_type_embedding = table(num_token_types) if num_token_types else None
        self.layernorm: nn.LayerNorm | None = None
        if pre_layernorm and not post_layernorm:
            self.layernorm = nn.LayerNorm(hidden_size, eps=layernorm_epsilon)
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.transformer = DistributedTransformer(
            num_layers, num_attention_heads, attention_head_size, hidden_size, intermediate_size,
            attention_dropout_prob, hidden_dropout_prob, activation, layernorm_epsilon,
            initializer_range, use_normal_initialization, causal_mask_size, add_cross_attention,
            pre_layernorm, post_layernorm, **options,
        )  # fmt: skip
        self.lm_head: nn.Linear | None = None
        if add_lm_head:
            self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
            self.lm_head.weight = self.word_embedding.weight
        self.register_buffer("positions", torch.arange(num_positions), persistent=False)

    def forward(self, inputs: tuple[Any, ...]) -> Any:
        """Return scores [N, S, words]; with labels, the mean loss and the scores.

        With a causal mask, the label of a position is that of the next one, as in Hugging Face's
        models. Labels of -100 do not count. Without a head, the result is the hidden states.

        Args:
            inputs: `(input_ids, attention_mask, token_type_ids, position_ids, labels)` or, with
                `add_cross_attention`, `(input_ids, attention_mask, token_type_ids, position_ids,
                cross_states, cross_states, cross_mask, labels)`. All may be None but the ids and
                the cross states. Ids and labels are of shape [N, S]. In the masks, of shape [N, S],
                1 is a position that is not attended to, and 0 one that is.
        """
        ids, mask, types, places, *cross, labels = inputs
        places = self.positions[: ids.shape[1]] if places is None else places
        hidden = self.word_embedding(ids) + self.position_embedding(places)
        if self.token_type_embedding is not None and types is not None:
            hidden = hidden + self.token_type_embedding(types)
        hidden = self.dropout(hidden)
        added = _added(mask, hidden.dtype)
        states: tuple[Any, ...]
        if self.add_cross_attention:
            states = (hidden, cross[0], added, _added(cross[-1], hidden.dtype))
        else:
            states = (hidden, added)
        hidden = self.transformer(states)[0]
        if self.layernorm is not None:
            hidden = self.layernorm(hidden)
        if self.lm_head is None:
            return hidden
        scores = self.lm_head(hidden)
        return scores if labels is None else (self._loss(scores, labels), scores)

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self.is_causal:
            scores, labels = scores[:, :-1], labels[:, 1:]
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the numbers to add to scores for a mask of shape [N, S] in which 1 is masked."""
    if mask is None:
        return None
    return mask[:, None, None, :].to(dtype) * torch.finfo(dtype).min
