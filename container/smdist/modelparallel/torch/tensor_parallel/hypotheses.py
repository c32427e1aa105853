# SPDX-License-Identifier: Apache-2.0
"""Splits that are worth a try: column and row pairs of products, with what changes around them.

The output of the products before (columns) is split over ranks, and the product after them (row)
sums over its rows. Several products may be fused into one, whose output then has sections:

    attention    q, k, v of their own, or one of sections (q, k, v), also with fewer keys
    gated MLP    gate and up of their own, or one of sections (gate, up)

A product before may feed another one, which also feeds the row:

    latent attention    the first stays whole on every rank, and values enter around all of them
    state space         the second is a row of the first's columns, and its sum goes on inside
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import nn

from smdist.modelparallel.torch.tensor_parallel.block_numbers import (
    attribute_sets,
    parameter_sets,
)
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import ModuleSplit, Region
from smdist.modelparallel.torch.tensor_splits import Role
from smdist.modelparallel.torch.tensor_splits.split_modules import is_conv1d


def widths(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a product."""
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    first, second = weight.shape
    return (first, second) if is_conv1d(module) else (second, first)


def pairs(
    block: nn.Module, feeds: Mapping[str, Sequence[str]], row: str, degree: int, origin: str
) -> Iterator[Region]:
    """Yield the splits to try for products that feed one product, the likeliest first.

    Args:
        block: Smallest module around the products.
        feeds: Products that feed the row, by their names in the block, with the products among them
            that feed each.
        row: Name in the block of the product that they feed.
        degree: Number of ranks.
        origin: "model" if the model's own plan has these roles, else "found".
    """
    inputs, _ = widths(block.get_submodule(row))
    for columns, inner, is_inside in _layouts(feeds):
        border = (ModuleSplit(name="", role=Role.BORDER),) if is_inside else ()
        rows = (*(_row(block, name, Role.INNER) for name in inner), _row(block, row, Role.ROW))
        for sections in _sections(block, columns, inputs):
            modules = (
                *border,
                *(column(block, name, Role.COLUMN, sections.get(name)) for name in columns),
                *rows,
            )
            if not _is_divisible(modules, degree):
                continue
            for found in _with_numbers(block, modules, inputs, degree):
                yield replace(found, origin=origin)


def _with_numbers(
    block: nn.Module, modules: tuple[ModuleSplit, ...], inputs: int, degree: int
) -> Iterator[Region]:
    """Yield a split with sets of other parameters and attributes of the block that change."""
    names = {each.name for each in modules if each.dims}
    lengths = {length for each in modules if len(each.sections) > 1 for length in each.sections}
    fused = {each.sections for each in modules if len(each.sections) > 1}
    for others in parameter_sets(block, names, inputs, degree):
        split = {*names, *(each.name for each in others)}
        for attributes in attribute_sets(block, split, {inputs, *lengths}, fused, degree):
            yield Region(block="", modules=(*modules, *others), attributes=attributes)


def _layouts(
    feeds: Mapping[str, Sequence[str]],
) -> Iterator[tuple[list[str], list[str], bool]]:
    """Yield columns, inner rows, and True if values enter the region around all products."""
    feeding = {name for before in feeds.values() for name in before}
    fed = {name for name, before in feeds.items() if before}
    if not feeding:
        yield list(feeds), [], False
        return
    yield [name for name in feeds if name not in feeding], [], True
    columns = [name for name in feeds if name not in fed]
    if columns:
        yield columns, [name for name in feeds if name in fed], False


def _is_divisible(modules: Sequence[ModuleSplit], degree: int) -> bool:
    return all(length % degree == 0 for each in modules for length in each.sections)


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


def _row(block: nn.Module, name: str, role: Role) -> ModuleSplit:
    module = block.get_submodule(name)
    dims = {"weight": 0 if is_conv1d(module) else 1}
    return ModuleSplit(name=name, role=role, dims=dims, sections=(widths(module)[0],))


def _sections(
    block: nn.Module, columns: Sequence[str], inputs: int
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the sections of fused products; none for products whose output is one range."""
    if len(columns) == 1:
        name = columns[0]
        _, outputs = widths(block.get_submodule(name))
        rest = outputs - inputs
        if rest > 0 and rest % inputs == 0:
            yield {name: (inputs,) * (outputs // inputs)}
        if rest > 0 and rest % 2 == 0 and rest != 2 * inputs:
            yield {name: (inputs, rest // 2, rest // 2)}
    yield {}
