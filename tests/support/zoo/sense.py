# SPDX-License-Identifier: Apache-2.0
"""Models of pictures and sound as transformers builds them, from a configuration alone."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from .specimen import Specimen, tokens


def vit(rows: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return a vision transformer, which reads a picture as a row of patches."""
    dropouts = {f"{name}_dropout_prob": dropout for name in ("hidden", "attention_probs")}
    config = ViTConfig(num_labels=10, **dropouts, **sizes)
    return _classifying(ViTForImageClassification(config), rows, config.image_size)


def resnet(rows: int, picture: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return a ResNet: residual blocks with BatchNorm; it has no dropout to set."""
    config = ResNetConfig(num_labels=10, **sizes)
    return _classifying(ResNetForImageClassification(config), rows, picture)


def whisper(rows: int, length: int, *, dropout: float = 0.0, **sizes: Any) -> Specimen:
    """Return Whisper, with an encoder of sound and a decoder of text."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(use_cache=False, dropout=dropout, **special, **sizes)
    sound = torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions)
    labels = tokens(rows, length, config.vocab_size)
    model = WhisperForConditionalGeneration(config)
    return Specimen(model=model, batch={"input_features": sound, "labels": labels})


def _classifying(model: Any, rows: int, picture: int) -> Specimen:
    pictures = torch.randn(rows, 3, picture, picture)
    labels = torch.randint(0, 10, (rows,))
    return Specimen(model=model, batch={"pixel_values": pictures, "labels": labels})
