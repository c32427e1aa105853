# SPDX-License-Identifier: Apache-2.0
"""Layers of SMP v1, such as `smp.nn.DistributedTransformer`, made of the layers of torch.

Each is an ordinary module with the sizes of the whole layer. Like any other module of a model, it
is split over ranks with `tensor_parallel_degree` above 1; alone, or without splitting, it computes
the same. The computation follows the descriptions in "The smdistributed.modelparallel.torch APIs",
section "Tensor Parallelism Module APIs" (SageMaker Python SDK documentation, read 2026-11-26).
"""

from torch.nn import LayerNorm as FusedLayerNorm

from smdist.modelparallel.torch.nn import huggingface
from smdist.modelparallel.torch.nn.attention_layer import (
    DistributedAttentionLayer,
    FlashAttentionLayer,
)
from smdist.modelparallel.torch.nn.linear_layers import DistributedEmbedding, DistributedLinear
from smdist.modelparallel.torch.nn.transformer_layers import (
    DistributedTransformer,
    DistributedTransformerLayer,
    DistributedTransformerOutputLayer,
)
from smdist.modelparallel.torch.nn.transformer_lm_head import DistributedTransformerLMHead

__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLinear",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "huggingface",
]
