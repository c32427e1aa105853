# SPDX-License-Identifier: Apache-2.0
"""GPT of Keras's layers whose head costs as much as several blocks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

WIDTH, HEADS, BLOCKS, VOCABULARY = 256, 4, 6, 8192
LENGTH, MICROBATCHES = 128, 8  # each microbatch is one row


def gpt() -> Any:
    """Return the model, with the same weights every time; names of layers begin with their place.

    Place 0 is the embedding, 1 to BLOCKS the blocks, and BLOCKS + 1 the head.
    """
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, name="0_tokens")(ids)
    for place in range(1, BLOCKS + 1):
        named = f"{place}_"
        normed = layers.LayerNormalization(name=f"{named}norm")(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"{named}attention")
        x = layers.Add(name=f"{named}sum")([x, attention(normed, normed, use_causal_mask=True)])
        normed = layers.LayerNormalization(name=f"{named}next_norm")(x)
        wide = layers.Dense(4 * WIDTH, activation="gelu", name=f"{named}wide")(normed)
        narrow = layers.Dense(WIDTH, name=f"{named}narrow")(wide)
        x = layers.Add(name=f"{named}next_sum")([x, narrow])
    place = BLOCKS + 1
    x = layers.LayerNormalization(name=f"{place}_norm")(x)
    return keras.Model(ids, layers.Dense(VOCABULARY, use_bias=False, name=f"{place}_head")(x))


def place_of(layer: Any) -> int:
    """Return the place of a layer; 0 for the input."""
    first = str(layer.name).partition("_")[0]
    return int(first) if first.isdecimal() else 0


def batch() -> tuple[Any, Any]:
    """Return token ids and the next tokens: MICROBATCHES rows of LENGTH."""
    text = np.random.default_rng(1).integers(VOCABULARY, size=(MICROBATCHES, LENGTH + 1))
    return text[:, :-1].astype("int32"), text[:, 1:].astype("int32")


def loss_of(labels: Any, logits: Any) -> Any:
    """Return the mean cross entropy."""
    return ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
