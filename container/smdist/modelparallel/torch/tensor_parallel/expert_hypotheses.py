# SPDX-License-Identifier: Apache-2.0
"""Splits that are worth a try for stacked experts: each expert's hidden width over ranks.

    experts, hidden width, inputs     weight of the first products; also with gate and up in one
    experts, outputs, hidden width    weight of the second products

The last two dimensions may be swapped. Biases of first products are split with their weight; those
of second products count on the first rank alone, because outputs are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from smdist.modelparallel.torch.tensor_parallel.block_numbers import attribute_sets
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import ModuleSplit, Region
from smdist.modelparallel.torch.tensor_splits import PartValues, Role


def is_stack(module: nn.Module) -> bool:
    """Return True for a module whose own parameters are stacked weights of several experts."""
    counts = [weight.shape[0] for weight in _weights(module).values()]
    return len(counts) > 1 and len(set(counts)) == 1 and counts[0] > 1


def experts(module: nn.Module, degree: int) -> Iterator[Region]:
    """Yield the splits to try for a module of stacked experts.

    Args:
        module: The module.
        degree: Number of ranks.
    """
    weights = _weights(module)
    for name in reversed(weights):
        firsts = {key: each for key, each in weights.items() if key != name}
        for dim in (1, 2):
            hidden, outputs = weights[name].shape[dim], weights[name].shape[3 - dim]
            second = ModuleSplit(name="", role=Role.PART, dims={name: dim}, sections=(hidden,))
            for first in _first_products(module, firsts, hidden, outputs):
                if hidden % degree == 0:
                    yield from _with_border(module, first, second, outputs, degree)


def _with_border(
    module: nn.Module, first: ModuleSplit, second: ModuleSplit, outputs: int, degree: int
) -> Iterator[Region]:
    found = (name for name, bias in _biases(module) if bias.shape[1] == outputs)
    biases = tuple(name for name in found if name not in first.dims)
    border = ModuleSplit(name="", role=Role.EXPERTS, values=PartValues(first=biases))
    for attributes in attribute_sets(module, (), set(second.sections), (), degree):
        yield Region(block="", modules=(border, first, second), attributes=attributes)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    own = module._parameters.items()
    return {name: each for name, each in own if each is not None and each.dim() == 3}


def _first_products(
    module: nn.Module, weights: Mapping[str, Tensor], hidden: int, outputs: int
) -> Iterator[ModuleSplit]:
    """Yield the splits of first products and their biases, with gate and up in one or apart."""
    for sections in ((hidden, hidden), (2 * hidden,), (hidden,)):
        width, dims = sum(sections), dict[str, int]()
        for name, weight in weights.items():
            found = [dim for dim in (1, 2) if weight.shape[dim] == width]
            if found:
                dims[name] = found[0]
        if dims.keys() != weights.keys():
            continue
        for name, bias in _biases(module):
            is_named = any(name.startswith(each) for each in weights)
            if bias.shape[1] == width and (width != outputs or is_named):
                dims[name] = 1
        yield ModuleSplit(name="", role=Role.PART, dims=dims, sections=sections)


def _biases(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, each in module._parameters.items():
        if each is not None and each.dim() == 2:
            yield name, each
