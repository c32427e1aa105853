# SPDX-License-Identifier: Apache-2.0
"""Newer language models of transformers: experts, latent attention, sinks, a state space."""

from __future__ import annotations

from typing import Any

from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from .specimen import Specimen
from .text import causal


def qwen3_moe(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return Qwen3-MoE: experts in stacked weights, and norms on each head of attention."""
    config = Qwen3MoeConfig(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(Qwen3MoeForCausalLM(config), rows, length)


def gemma3(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return Gemma 3, whose layers attend to a window or to all tokens, and whose head is tied."""
    config = Gemma3TextConfig(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(Gemma3ForCausalLM(config), rows, length)


def deepseek_v3(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return DeepSeek-V3: latent attention, a shared expert beside those of the router."""
    config = DeepseekV3Config(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(DeepseekV3ForCausalLM(config), rows, length)


def gpt_oss(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return GPT-OSS: attention with a sink for each head, experts with biases."""
    config = GptOssConfig(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(GptOssForCausalLM(config), rows, length)


def mamba(rows: int, length: int, **sizes: Any) -> Specimen:
    """Return Mamba, a selective state space in place of attention; it has no dropout to set."""
    specimen = causal(MambaForCausalLM(MambaConfig(use_cache=False, **sizes)), rows, length)
    assert isinstance(specimen.batch, dict)
    del specimen.batch["attention_mask"]
    return specimen
