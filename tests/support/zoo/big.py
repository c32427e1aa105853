# SPDX-License-Identifier: Apache-2.0
"""Models for the meta device: Llama-2 70B and the 175 billion parameters of GPT-3."""

from __future__ import annotations

from .text import gpt2, llama

LLAMA70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
GPT3 = {"n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048, "vocab_size": 50257}
MODELS = {
    "llama70b": lambda rows, dropout: llama(rows, 2048, dropout=dropout, **LLAMA70B),
    "gpt3_175b": lambda rows, dropout: gpt2(rows, 2048, dropout=dropout, **GPT3),
}
