# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers of modules as entries that can be replaced, wherever modules keep them.

An entry is not all: an LSTM, for one, also has its parameters in a list of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def hollow(tensor: Tensor) -> Tensor:
    """The same on the meta device: type, shape, strides and what the user wrote on it."""
    with torch.no_grad():
        bare = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
        )
    return like(tensor, bare)


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values` as a tensor of the same kind: parameter or buffer, trained or not, as marked."""
    if isinstance(tensor, nn.Parameter):
        made: Tensor = torch.Tensor._make_subclass(type(tensor), values, tensor.requires_grad)
    else:
        made = values.requires_grad_(tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


def entries(modules: Iterable[nn.Module]) -> Iterable[Tensor]:
    """Every parameter and buffer of modules, without those inside them; some come twice."""
    for module in modules:
        for group in (module._parameters, module._buffers):
            yield from (tensor for tensor in group.values() if tensor is not None)


def replace(modules: Iterable[nn.Module], new: Mapping[int, Tensor]) -> None:
    """Put others in place of tensors, by the id of the old one, in modules and in their lists."""
    for module in modules:
        for group in (module._parameters, module._buffers, vars(module)):
            for key, value in group.items():
                if isinstance(value, Tensor) and id(value) in new:
                    group[key] = new[id(value)]  # type: ignore[assignment]
        for value in vars(module).values():
            if isinstance(value, list):
                value[:] = [new.get(id(each), each) for each in value]
