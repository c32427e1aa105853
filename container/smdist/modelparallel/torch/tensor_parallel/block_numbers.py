# SPDX-License-Identifier: Apache-2.0
"""Numbers of a block that change when its products are split: attributes, and other parameters.

Numbers of heads and widths may be attributes of the block's modules. Parameters of other modules
may have an element for each head, such as sinks of attention, or for each channel between columns
and row, such as the states of Mamba.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from torch import nn

from smdist.modelparallel.torch.tensor_parallel.tensor_plan import Attribute, ModuleSplit
from smdist.modelparallel.torch.tensor_splits import Role

_HEADS: Final = re.compile(r"^(n|num)_?(attention_|attn_|query_|key_value_|kv_|q_)*heads?$|^heads$")


def attribute_sets(
    block: nn.Module,
    split: Collection[str],
    widths: Collection[int],
    sections: Collection[tuple[int, ...]],
    degree: int,
) -> Iterator[tuple[Attribute, ...]]:
    """Yield sets of attributes that may change with the split: none, widths, heads, both.

    Args:
        block: Module around the split.
        split: Names in the block of the modules that are split.
        widths: Numbers that count as widths: inputs of the row, lengths of sections.
        sections: Lengths of the sections of fused products, which may be an attribute, too.
        degree: Number of ranks.
    """
    modules = {block.get_submodule(name) for name in split if name}
    numbers = [
        (name, key, value)
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if module not in modules and _is_divisible(value, sections, degree)
    ]
    by_width = [each for each in numbers if isinstance(each[2], tuple | list) or each[2] in widths]
    by_name = [each for each in numbers if _HEADS.match(each[1]) and each not in by_width]
    tried: list[Any] = []
    for found in ([], by_width, by_name, by_width + by_name):
        if found not in tried:
            tried.append(found)
            yield tuple(_attribute(*each, degree) for each in found)


def _is_divisible(value: object, sections: Collection[tuple[int, ...]], degree: int) -> bool:
    if isinstance(value, tuple | list):
        return tuple(value) in sections
    return type(value) is int and value > 1 and value % degree == 0


def _attribute(module: str, name: str, value: Any, degree: int) -> Attribute:
    if isinstance(value, int):
        return Attribute(module=module, name=name, whole=value, part=value // degree)
    part = tuple(length // degree for length in value)
    return Attribute(module=module, name=name, whole=tuple(value), part=part)


def parameter_sets(
    block: nn.Module, products: Collection[str], inputs: int, degree: int
) -> Iterator[tuple[ModuleSplit, ...]]:
    """Yield sets of other parameters that may be split: none, all, the block's own, by length.

    Args:
        block: Module around the split.
        products: Names in the block of the products that are split.
        inputs: Number of inputs of the row: channels between columns and row.
        degree: Number of ranks.
    """
    yield ()
    others = [(name, module) for name, module in block.named_modules() if name not in products]
    heads = {count for _, count in numbers_of_heads(block) if count > 1 and count % degree == 0}
    heads -= {inputs}
    by_channel = [each for each in map(_split_of({inputs}), others) if each is not None]
    by_head = [each for each in map(_split_of(heads), others) if each is not None]
    both = [*by_channel, *by_head]
    own = [each for each in both if not each.name]
    tried: list[Any] = [[]]
    for found in (both, own, by_channel, by_head):
        if found not in tried and len({each.name for each in found}) == len(found):
            tried.append(found)
            yield tuple(found)


def _split_of(lengths: Collection[int]) -> Any:
    """Return a function that splits the parameters of a module that have one of these lengths."""

    def split(named: tuple[str, nn.Module]) -> ModuleSplit | None:
        name, module = named
        dims: dict[str, int] = {}
        found: int | None = None
        for key, parameter in module._parameters.items():
            for dim, size in enumerate(() if parameter is None else parameter.shape):
                if size in lengths and size == (found or size) and key not in dims:
                    dims[key], found = dim, size
        if found is None:
            return None
        return ModuleSplit(name=name, role=Role.PART, dims=dims, sections=(found,))

    return split


def numbers_of_heads(block: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the names and values of numbers of heads, in attributes of modules or of `config`."""
    for module in block.modules():
        for holder in (module, getattr(module, "config", None)):
            for key, value in getattr(holder, "__dict__", {}).items():
                if _HEADS.match(key) and type(value) is int:
                    yield key, value


def undivided_heads(block: nn.Module, degree: int) -> tuple[str, int] | None:
    """Return the name and number of heads of an attention block that the degree does not divide.

    None if all are divisible.
    """
    return next((each for each in numbers_of_heads(block) if each[1] % degree), None)
