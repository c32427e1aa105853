# SPDX-License-Identifier: Apache-2.0
"""Fifteen models with a few layers each, whose heads and widths are divisible by 4."""

from __future__ import annotations

from .dyn import dyn
from .newer import deepseek_v3, gemma3, gpt_oss, mamba, qwen3_moe
from .sense import resnet, vit, whisper
from .small import RESNET, WHISPER
from .text import bert, gpt2, llama, mixtral, t5
from .unet import unet

LENGTH = 10
BERT_LIKE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LLAMA_LIKE = {**BERT_LIKE, "num_key_value_heads": 4, "vocab_size": 96}
# Experts in one batched product run in every precision, also in float64.
EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
WHISPER_LIKE = {**WHISPER, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
GROUPED = {**LLAMA_LIKE, "num_attention_heads": 8, "head_dim": 8}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
GROUPS = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
MAMBA = {"vocab_size": 96, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
MODELS = {
    "gpt2": lambda rows, dropout: gpt2(
        rows, LENGTH, dropout=dropout, vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=4
    ),
    "llama": lambda rows, dropout: llama(rows, LENGTH, dropout=dropout, **GROUPED),
    "bert": lambda rows, dropout: bert(rows, LENGTH, dropout=dropout, vocab_size=96, **BERT_LIKE),
    "t5": lambda rows, dropout: t5(rows, LENGTH, dropout=dropout, **T5),
    "vit": lambda rows, dropout: vit(
        rows, dropout=dropout, image_size=16, patch_size=4, **BERT_LIKE
    ),
    "resnet": lambda rows, dropout: resnet(
        rows, 32, dropout=dropout, layer_type="bottleneck", **RESNET
    ),
    "unet": lambda rows, dropout: unet(rows, 16, 8, dropout=dropout),
    "dyn": lambda rows, dropout: dyn(rows, 32, 6, dropout=dropout),
    "mixtral": lambda rows, dropout: mixtral(
        rows, LENGTH, dropout=dropout, num_local_experts=4, **EXPERTS, **GROUPED
    ),
    "whisper": lambda rows, dropout: whisper(rows, LENGTH, dropout=dropout, **WHISPER_LIKE),
    "qwen3_moe": lambda rows, dropout: qwen3_moe(
        rows, LENGTH, dropout=dropout, num_experts=4, moe_intermediate_size=32, **EXPERTS, **GROUPED
    ),
    "gemma3": lambda rows, dropout: gemma3(
        rows, LENGTH, dropout=dropout, sliding_window=4, query_pre_attn_scalar=8, **GROUPED
    ),
    "deepseek_v3": lambda rows, dropout: deepseek_v3(
        rows, LENGTH, dropout=dropout, moe_intermediate_size=32, **LATENT, **GROUPS, **EXPERTS,
        **LLAMA_LIKE,
    ),
    "gpt_oss": lambda rows, dropout: gpt_oss(
        rows, LENGTH, dropout=dropout, num_local_experts=4, sliding_window=4, **EXPERTS, **GROUPED
    ),
    "mamba": lambda rows, dropout: mamba(rows, LENGTH, **MAMBA),
}  # fmt: skip
