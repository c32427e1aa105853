# SPDX-License-Identifier: Apache-2.0
"""Models in sizes that people train, small enough to measure every layer on one core in seconds."""

from __future__ import annotations

from .sense import resnet, vit
from .text import bert, gpt2, llama, t5
from .unet import unet

VIT_S = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
}
LLAMA160M = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 32000,
}
MODELS = {
    "gpt2-small": lambda rows, dropout: gpt2(rows, 128, dropout=dropout),
    "bert-base": lambda rows, dropout: bert(rows, 128, dropout=dropout),
    "t5-small": lambda rows, dropout: t5(rows, 128, dropout=dropout),
    "resnet50": lambda rows, dropout: resnet(rows, 128, dropout=dropout),
    "vit-s": lambda rows, dropout: vit(rows, dropout=dropout, **VIT_S),
    "unet-32": lambda rows, dropout: unet(rows, 64, 32, dropout=dropout),
    "llama-160m": lambda rows, dropout: llama(rows, 128, dropout=dropout, **LLAMA160M),
}
