# SPDX-License-Identifier: Apache-2.0
"""Language models as transformers builds them, from a configuration alone."""

from __future__ import annotations

from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from .specimen import Specimen, labelled, tokens


def gpt2(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return GPT-2, whose head is tied to its embedding."""
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(use_cache=False, **dropouts, **ends, **sizes)
    return causal(GPT2LMHeadModel(config), rows, length)


def llama(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return Llama, whose rotary positions are two values that every layer reads."""
    config = LlamaConfig(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(LlamaForCausalLM(config), rows, length)


def mixtral(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return Mixtral, with experts of which each token uses two."""
    config = MixtralConfig(use_cache=False, attention_dropout=dropout, **sizes)
    return causal(MixtralForCausalLM(config), rows, length)


def bert(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return BERT, whose decoder is tied to its embedding."""
    dropouts = {f"{name}_dropout_prob": dropout for name in ("hidden", "attention_probs")}
    return causal(BertForMaskedLM(BertConfig(**dropouts, **sizes)), rows, length)


def t5(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return T5: encoder and decoder share an embedding, every decoder layer reads the encoder."""
    config = T5Config(use_cache=False, dropout_rate=dropout, decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    vocabulary = config.vocab_size
    labels = tokens(rows, length, vocabulary)
    return Specimen(model=model, batch={**labelled(rows, length, vocabulary), "labels": labels})


def causal(model: Any, rows: int, length: int) -> Specimen:
    """Return a specimen of a language model, which learns to predict its own ids."""
    # otherwise transformers guesses it from the class's name
    if getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"
    return Specimen(model=model, batch=labelled(rows, length, model.config.vocab_size))
