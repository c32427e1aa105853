# SPDX-License-Identifier: Apache-2.0
"""Roles of modules in a split region, and the entry of values to it.

column      y_r = x W_r           each rank has a part of the output
joined      y = [x W_0, x W_1]    as column, then the whole output on every rank
row         y = sum of x_r W_r    the input is the output of columns; bias is added once
inner       as row                its sum goes on inside of the region
vocabulary  rows of an embedding  ids of other ranks' rows give 0, then the sum over ranks
part        any module            computes with its parts of parameters as if they were whole
border      module around others  its inputs enter the region, so its products need not do it
attention   torch's attention     computes this rank's heads, and sums their outputs over ranks
experts     stacked experts       inputs enter the region, and its outputs are summed over ranks
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.tensor_splits.peers import Peers, is_silent
from smdist.modelparallel.torch.tensor_splits.region_borders import entered, summed
from smdist.modelparallel.torch.tensor_splits.sequence_borders import Gathering
from smdist.modelparallel.torch.tensor_splits.sequence_part import (
    SequencePart,
    summed_or_scattered,
)


class Role(str, Enum):
    """Part that a module has in a split region; the module's docstring explains the values."""

    COLUMN = "column"
    JOINED = "joined"
    ROW = "row"
    INNER = "inner"
    VOCABULARY = "vocabulary"
    PART = "part"
    BORDER = "border"
    ATTENTION = "attention"
    EXPERTS = "experts"


class RegionEntry:
    """Entry of inputs to a split region; modules that share an input share one all-reduce.

    Args:
        peers: Ranks over which the region is split.
        is_inside: True if values enter the region at the border of a module around its products.
        is_sliced: True if the region's sum over ranks is split by positions of the sequence.
    """

    # Slots and no dict, so that captures see no setting.
    __slots__ = ("_gathering", "_is_inside", "_is_sliced", "_latest", "_peers", "_stand_ins")

    def __init__(self, peers: Peers, *, is_inside: bool = False, is_sliced: bool = False) -> None:
        self._peers = peers
        self._is_inside, self._is_sliced = is_inside, is_sliced
        self._gathering: Gathering | None = None
        self._latest: tuple[ReferenceType[Tensor], ReferenceType[Tensor]] | None = None
        self._stand_ins: list[tuple[Tensor, Tensor]] = []

    @property
    def peers(self) -> Peers:
        """Ranks over which the region is split."""
        return self._peers

    @property
    def is_sliced(self) -> bool:
        """True if the region's sum over ranks is split by positions of the sequence."""
        return self._is_sliced

    def enter(self, tensor: Tensor) -> Tensor:
        """Return the input of a product, whose gradient is summed over ranks.

        Projections of one input, such as those of queries, keys and values, get the same result, so
        the sum of their gradients takes one message. A capture, on tensors without values, sees
        each module by itself. The input is unchanged if the value is in the region already.
        """
        tensor = next((whole for part, whole in self._stand_ins if part is tensor), tensor)
        if self._is_inside or not (torch.is_grad_enabled() and tensor.requires_grad):
            self._gathering = None
            return tensor.whole() if isinstance(tensor, SequencePart) else tensor
        if isinstance(tensor, SequencePart):
            return self._gathered(tensor)
        if is_silent(tensor):
            return entered(tensor, self._peers)
        self._gathering = None
        if self._latest is not None:
            before, made = self._latest[0](), self._latest[1]()
            if before is tensor and made is not None and made._version == tensor._version:
                return made
        made = entered(tensor, self._peers)
        self._latest = ref(tensor), ref(made)
        return made

    def _gathered(self, tensor: SequencePart) -> Tensor:
        """Return the whole input, which is kept until the end of the region."""
        part = tensor.part
        if self._gathering is None or self._gathering.part is not part:
            self._gathering = Gathering(part, tensor.positions)
        return self._gathering.whole

    def saving(self) -> AbstractContextManager[Any]:
        """Return the context in which a product runs on what `enter` has returned last.

        If the ranks have slices of it, the product saves this rank's slice alone.
        """
        return nullcontext() if self._gathering is None else self._gathering.saving()

    def reduced(self, term: Tensor) -> Tensor:
        """Return the sum over ranks at the end of the region, whole or split by positions."""
        if self._is_sliced:
            return summed_or_scattered(term, self._peers)
        return summed(term, self._peers)

    @contextmanager
    def stand_ins(self) -> Iterator[None]:
        """Forget, at the end of the block, which tensors `stand_in` has returned in it."""
        outer = len(self._stand_ins)
        try:
            yield
        finally:
            del self._stand_ins[outer:]

    def stand_in(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the shape that a part of another one has.

        Its last dimension is that of a part, and code may read it. A product that gets this tensor
        takes the whole one; its own values have no meaning.

        Args:
            tensor: The whole tensor.
        """
        width = tensor.shape[-1] // self._peers.size
        if isinstance(tensor, SequencePart):
            part = tensor.part.new_empty(()).expand(*tensor.shape[:-1], width)
        else:
            part = tensor.detach().narrow(-1, 0, width)
        self._stand_ins.append((part, tensor))
        return part

    def leave(self) -> None:
        """Forget the latest input, at the end of the region."""
        self._latest = self._gathering = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RegionEntry:
        """Return an entry of the same ranks, which has seen no input."""
        made = memo[id(self)] = RegionEntry(
            self._peers, is_inside=self._is_inside, is_sliced=self._is_sliced
        )
        return made


def splits_sequences(model: nn.Module) -> bool:
    """Return True if a split region of a model splits the sequence after it over ranks."""
    entries = (vars(each).get("_smp_entry") for each in model.modules())
    return any(isinstance(entry, RegionEntry) and entry.is_sliced for entry in entries)
