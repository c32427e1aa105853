# SPDX-License-Identifier: Apache-2.0
"""Splits that are worth a try: column and row pairs of products, with what changes around them.

The output of the products before (columns) is split over ranks, and the product after them (row)
sums over its rows. Several products may be fused into one, whose output then has sections:

    attention    q, k, v of their own, or one of sections (q, k, v)
    gated MLP    gate and up of their own, or one of sections (gate, up)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from torch import nn

from smdist.modelparallel.torch.tensor_parallel.tensor_plan import Attribute, ModuleSplit, Region
from smdist.modelparallel.torch.tensor_splits import Role
from smdist.modelparallel.torch.tensor_splits.split_modules import is_conv1d

_HEADS: Final = re.compile(r"^(n|num)_?(attention_|attn_|query_|key_value_|kv_|q_)*heads?$|^heads$")


def widths(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a product."""
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    first, second = weight.shape
    return (first, second) if is_conv1d(module) else (second, first)


def pairs(
    block: nn.Module, columns: Sequence[str], row: str, degree: int, origin: str
) -> Iterator[Region]:
    """Yield the splits to try for products that feed one product, the likeliest first.

    Args:
        block: Smallest module around the products.
        columns: Names in the block of the products whose outputs are split.
        row: Name in the block of the product that they feed.
        degree: Number of ranks.
        origin: "model" if the model's own plan has these roles, else "found".
    """
    inputs, _ = widths(block.get_submodule(row))
    for sections in _sections(block, columns, inputs):
        modules = (
            *(column(block, name, Role.COLUMN, sections.get(name)) for name in columns),
            _row(block, row),
        )
        for attributes in _attributes(block, modules, inputs, degree):
            yield Region(block="", modules=modules, attributes=attributes, origin=origin)


def column(
    block: nn.Module, name: str, role: Role, sections: tuple[int, ...] | None = None
) -> ModuleSplit:
    """Return the split of a product by its outputs.

    Args:
        block: Module around the product.
        name: Name of the product in the block.
        role: COLUMN, or JOINED if its whole output is needed.
        sections: Lengths of the sections of its output; None for a single one.
    """
    module = block.get_submodule(name)
    _, outputs = widths(module)
    dims = {"weight": 1 if is_conv1d(module) else 0}
    if module.bias is not None:
        dims["bias"] = 0
    return ModuleSplit(name=name, role=role, dims=dims, sections=sections or (outputs,))


def table(block: nn.Module, name: str) -> ModuleSplit:
    """Return the split of an embedding by its rows."""
    rows = block.get_submodule(name).num_embeddings
    assert isinstance(rows, int)
    return ModuleSplit(name=name, role=Role.VOCABULARY, dims={"weight": 0}, sections=(rows,))


def _row(block: nn.Module, name: str) -> ModuleSplit:
    module = block.get_submodule(name)
    dims = {"weight": 0 if is_conv1d(module) else 1}
    return ModuleSplit(name=name, role=Role.ROW, dims=dims, sections=(widths(module)[0],))


def _sections(
    block: nn.Module, columns: Sequence[str], inputs: int
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the sections of fused products; none for products whose output is one range."""
    if len(columns) == 1:
        name = columns[0]
        _, outputs = widths(block.get_submodule(name))
        if outputs > inputs and outputs % inputs == 0:
            yield {name: (inputs,) * (outputs // inputs)}
    yield {}


def _attributes(
    block: nn.Module, modules: Sequence[ModuleSplit], inputs: int, degree: int
) -> Iterator[tuple[Attribute, ...]]:
    """Yield sets of attributes that may change with the split: none, widths, heads, both."""
    split = {block.get_submodule(each.name) for each in modules}
    numbers = [
        (name, key, value)
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if module not in split and _is_count(value) and value % degree == 0
    ]
    by_width = [each for each in numbers if each[2] == inputs]
    by_name = [each for each in numbers if _HEADS.match(each[1]) and each not in by_width]
    tried: list[Any] = []
    for found in ([], by_width, by_name, by_width + by_name):
        if found not in tried:
            tried.append(found)
            yield tuple(
                Attribute(module=name, name=key, whole=value, part=value // degree)
                for name, key, value in found
            )


def _is_count(value: object) -> bool:
    return type(value) is int and value > 1


def undivided_heads(block: nn.Module, degree: int) -> tuple[str, int] | None:
    """Return the name and number of heads of an attention block that the degree does not divide.

    The number is an attribute of a module, or of its `config`; None if all are divisible.
    """
    for module in block.modules():
        for holder in (module, getattr(module, "config", None)):
            for key, value in getattr(holder, "__dict__", {}).items():
                if _HEADS.match(key) and type(value) is int and value % degree:
                    return key, value
    return None
