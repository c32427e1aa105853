# SPDX-License-Identifier: Apache-2.0
"""Split of torch's attention module (`nn.MultiheadAttention`) by heads."""

from __future__ import annotations

from torch import nn

from smdist.modelparallel.torch.tensor_parallel.refusal_kinds import DROPOUT, INDIVISIBLE, UNPROVED
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import ModuleSplit, Region
from smdist.modelparallel.torch.tensor_splits import Role


def attention(module: nn.MultiheadAttention) -> Region:
    """Return the split of an attention module by its heads."""
    width = module.embed_dim
    biases = {} if module.in_proj_bias is None else {"in_proj_bias": 0}
    out = ModuleSplit(name="out_proj", role=Role.PART, dims={"weight": 1}, sections=(width,))
    is_fused: bool = module._qkv_same_embed_dim
    if is_fused:
        dims = {"in_proj_weight": 0, **biases}
        fused = ModuleSplit(name="", role=Role.ATTENTION, dims=dims, sections=(width,) * 3)
        return Region(block="", modules=(fused, out))
    apart = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"), 0)
    split = ModuleSplit(name="", role=Role.ATTENTION, dims=apart, sections=(width,))
    bias = ModuleSplit(name="", role=Role.PART, dims=biases, sections=(width,) * 3)
    return Region(block="", modules=(split, *((bias,) if biases else ()), out))


def whole_attention(
    module: nn.MultiheadAttention, degree: int, *, on_accelerator: bool
) -> tuple[str, str] | None:
    """Return the kind of a reason and a sentence if a module cannot be split; None if it may be."""
    if module.num_heads % degree:
        return INDIVISIBLE, f"its num_heads, {module.num_heads}, is not divisible by {degree}"
    if module.dropout and on_accelerator:
        return DROPOUT, "dropout inside of it would draw other numbers on parts"
    if module.bias_k is not None or module.add_zero_attn:
        return UNPROVED, "options add_bias_kv and add_zero_attn need all heads on a rank"
    return None
