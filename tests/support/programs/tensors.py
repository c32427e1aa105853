# SPDX-License-Identifier: Apache-2.0
"""Parts of a call as the tensors that torch's functions take."""

import torch
from torch import Tensor

from programs.drawing import EXCHANGING, Call, shape_of

ONE_TENSOR_GIVEN = ("reduce_scatter_single", "all_to_all_single")
ONE_TENSOR_TAKEN = ("all_gather_single", "all_to_all_single")
# calls whose input tensor is their output
SAME_TENSOR = ("all_reduce", "all_reduce_coalesced", "reduce", "broadcast")


class Side:
    """Parts as separate tensors, or as views of one tensor."""

    def __init__(self, parts: list[Tensor], *, is_one: bool, is_strided: bool, device: str) -> None:
        lay = _lay_strided if is_strided else torch.clone
        # joined on the CPU, because GPUs join no floats of 8 bits
        self.one = lay(_join(parts).to(device)) if is_one else None
        self.parts = (
            [lay(part.to(device)) for part in parts] if self.one is None else _cut(self.one, parts)
        )


def sides_of(call: Call, me: int, brought: list[Tensor], device: str) -> tuple[Side, Side]:
    """Return the inputs of a member's call on a device, and the tensors for its results."""
    how = {"is_strided": call.is_strided, "device": device}
    given = Side(brought, is_one=call.kind in ONE_TENSOR_GIVEN, **how)
    if call.kind in SAME_TENSOR:
        return given, given
    blank = [_blank(call.dtype, shape) for shape in _shapes_taken(call, me)]
    taken = Side(blank, is_one=call.kind in ONE_TENSOR_TAKEN, **how)
    if call.is_in_place and call.kind not in EXCHANGING:
        _share(given, taken, me)
    return given, taken


def is_given_kept(call: Call) -> bool:
    """Return whether no result may overwrite a member's input."""
    return call.kind not in SAME_TENSOR and (call.kind in EXCHANGING or not call.is_in_place)


def _share(given: Side, taken: Side, me: int) -> None:
    """Share memory: the single part of one side may be this member's part of the other side."""
    if len(given.parts) == 1 < len(taken.parts):
        given.parts[0] = taken.parts[me].copy_(given.parts[0])
    elif len(taken.parts) == 1 < len(given.parts):
        taken.parts[0] = given.parts[me]


def _shapes_taken(call: Call, me: int) -> list[tuple[int, ...]]:
    match call.kind:
        case "barrier":
            return []
        case "gather" if me != call.root:
            return []
        case "send" | "send_to_any" if me != call.next(call.root):
            return []
        case "send" | "send_to_any" | "ring":
            return [call.shape]
        case "reduce_scatter" | "reduce_scatter_single" | "scatter":
            return [call.shape]
        case _:
            return [shape_of(call, source, me) for source in range(call.size)]


def _blank(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor without the expected values; ones, because a bool must be 0 or 1."""
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.ones(count, dtype=torch.uint8).view(dtype).reshape(shape)


def _lay_strided(tensor: Tensor) -> Tensor:
    """Return the same values with a gap after each."""
    return tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])


def _cut(one: Tensor, parts: list[Tensor]) -> list[Tensor]:
    if parts[0].dim() == 0:
        return list(one)
    return list(one.split([part.shape[0] for part in parts]))
