# SPDX-License-Identifier: Apache-2.0
"""Translations of state dicts between SMP v1's layers and Hugging Face's models, by model.

SMP v1 replaces the layers of these models by its own, which have other names. Here, layers of a
model are split as they are, so the names are Hugging Face's, and nothing is translated.
"""

from smdist.modelparallel.torch.nn.huggingface import (
    bert,
    gpt2,
    gptj,
    gptneo,
    gptneox,
    roberta,
)

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta"]
