# SPDX-License-Identifier: Apache-2.0
"""Layers of a transformer, computed from the numbers of its configuration.

Operations: a product of an (m x k) and a (k x n) matrix has 2 m k n. Activations are those that
PyTorch keeps with a fused attention, which keeps no matrix of scores (Dao et al., 2022,
arXiv 2205.14135), counted as in Korthikanti et al. (2022, arXiv 2205.05198, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.layout.layer_model import Layer, LayerModel
from smdist.modelparallel.core.quantities import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Numbers of a decoder-only transformer.

    Attributes:
        name: Name of the model.
        num_layers: Number of transformer blocks.
        hidden: Width of the model.
        heads: Attention heads.
        kv_heads: Heads of keys and values; as many as `heads` without grouped queries.
        ffn: Width of the feed-forward network.
        vocabulary: Number of tokens in the vocabulary.
        sequence: Tokens of one sample.
        is_gated: True for a feed-forward network of three matrices (SwiGLU), False for two.
        is_tied: True if the embedding and the output layer share their matrix.
        is_fused: True if attention keeps no matrix of scores.
        element_bytes: Bytes of an element of activations.

    Raises:
        OptionError: A number is below 1; all faults are reported.
    """

    name: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    is_gated: bool = True
    is_tied: bool = False
    is_fused: bool = True
    element_bytes: int = 2

    def __post_init__(self) -> None:
        raise_all(self._faults())

    def _faults(self) -> Iterator[OptionError]:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name" or field.name.startswith("is_"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                what, why = f"{field.name} is {shown(value)}", "it is a number of at least 1"
                yield OptionError(what, why, "Pass a positive integer", about=field.name)

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values."""
        return self.hidden * self.kv_heads // self.heads

    @property
    def matrix_elements(self) -> int:
        """Parameters of the matrices of one block."""
        matrices = 3 if self.is_gated else 2
        return 2 * self.hidden * (self.hidden + self.kv_width) + matrices * self.hidden * self.ffn


def transformer(config: TransformerConfig) -> LayerModel:
    """Return the layers of a transformer: embedding, blocks, and output layer with loss."""
    block = _block(config)
    return LayerModel(
        name=config.name,
        layers=(_embedding(config), *[block] * config.num_layers, _output(config)),
        selective_rule="products of matrices are kept, all else is computed again",
        tokens_per_sample=config.sequence,
    )


def _block(c: TransformerConfig) -> Layer:
    tokens, size = c.sequence, c.element_bytes
    products = 2.0 * tokens * c.matrix_elements
    attention = 2.0 * tokens * tokens * c.hidden  # two products, half of each is masked out
    branches = 4 if c.is_gated else 2  # values as wide as the feed-forward network
    kept = 6 * c.hidden + 2 * c.kv_width + branches * c.ffn
    saved = size * tokens * kept
    if not c.is_fused:
        saved += 2.5 * size * c.heads * tokens * tokens  # scores, their softmax, a mask of bytes
        attention *= 2
    results = 2 * c.hidden + 2 * c.kv_width + (2 if c.is_gated else 1) * c.ffn + c.hidden
    return Layer(
        name="block",
        num_parameters=c.matrix_elements + 2 * c.hidden,
        forward_flops=products,
        attention_flops=attention,
        moved_bytes=2.0 * saved,
        saved_bytes=saved,
        selective_bytes=size * tokens * (results + c.hidden),
        selective_fraction=0.05,
        boundary_bytes=size * tokens * c.hidden,
        workspace_bytes=2.0 * size * tokens * max(c.ffn, c.hidden),
        tensor_fraction=1.0 if c.heads > 1 else 0.0,
        tensor_messages=2,
        most_tensor_ranks=c.kv_heads,
        product_size=min(c.hidden, c.ffn),
    )


def _embedding(c: TransformerConfig) -> Layer:
    out = c.element_bytes * c.sequence * c.hidden
    return Layer(
        name="embedding",
        num_parameters=c.vocabulary * c.hidden,
        moved_bytes=2.0 * out,
        saved_bytes=8.0 * c.sequence,
        selective_bytes=8.0 * c.sequence,
        selective_fraction=0.0,
        boundary_bytes=out,
        tensor_fraction=1.0,
        tensor_messages=1,
        most_tensor_ranks=c.kv_heads,
        product_size=c.hidden,
    )


def _output(c: TransformerConfig) -> Layer:
    logits = c.sequence * c.vocabulary
    return Layer(
        name="output",
        num_parameters=c.hidden + (0 if c.is_tied else c.vocabulary * c.hidden),
        forward_flops=2.0 * logits * c.hidden,
        moved_bytes=3.0 * 4 * logits,
        saved_bytes=(c.element_bytes + 4.0) * logits,
        selective_bytes=(c.element_bytes + 4.0) * logits,
        selective_fraction=0.0,
        boundary_bytes=4.0,
        workspace_bytes=4.0 * logits,
        tensor_fraction=1.0,
        tensor_messages=1,
        most_tensor_ranks=c.kv_heads,
        product_size=c.hidden,
    )
