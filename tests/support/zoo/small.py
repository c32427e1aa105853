# SPDX-License-Identifier: Apache-2.0
"""Ten models with a few layers each."""

from __future__ import annotations

from .dyn import dyn
from .sense import resnet, vit, whisper
from .text import bert, gpt2, llama, mixtral, t5
from .unet import unet

BERT_LIKE = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
LLAMA_LIKE = {**BERT_LIKE, "num_key_value_heads": 1, "vocab_size": 96}
WHISPER = {
    "vocab_size": 96,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 12,
    "max_target_positions": 16,
}
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 3, "num_heads": 2}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [1, 2, 1]}
MODELS = {
    "gpt2": lambda rows, dropout: gpt2(
        rows, 12, dropout=dropout, vocab_size=96, n_positions=16, n_embd=32, n_layer=4, n_head=2
    ),
    "llama": lambda rows, dropout: llama(rows, 12, dropout=dropout, **LLAMA_LIKE),
    "bert": lambda rows, dropout: bert(rows, 12, dropout=dropout, vocab_size=96, **BERT_LIKE),
    "t5": lambda rows, dropout: t5(rows, 12, dropout=dropout, **T5),
    "vit": lambda rows, dropout: vit(
        rows, dropout=dropout, image_size=16, patch_size=4, **BERT_LIKE
    ),
    "resnet": lambda rows, dropout: resnet(
        rows, 32, dropout=dropout, layer_type="bottleneck", **RESNET
    ),
    "unet": lambda rows, dropout: unet(rows, 16, 8, dropout=dropout),
    "dyn": lambda rows, dropout: dyn(rows, 32, 6, dropout=dropout),
    "mixtral": lambda rows, dropout: mixtral(
        rows, 12, dropout=dropout, num_local_experts=4, **LLAMA_LIKE
    ),
    "whisper": lambda rows, dropout: whisper(rows, 10, dropout=dropout, **WHISPER),
}
