# SPDX-License-Identifier: Apache-2.0
"""Modules of which each rank computes a part: columns or rows of a product, rows of a table.

    column      y_r = x W_r           each rank has a part of the output
    joined      y = [x W_0, x W_1]    as column, then the whole output on every rank
    row         y = sum of x_r W_r    the input is the output of columns; bias is added once
    vocabulary  rows of an embedding  ids of other ranks' rows give 0, then the sum over ranks

A module is changed in place: its class becomes a subclass of its class, as in FSDP2. So names,
hooks, `isinstance` and initialisation by type stay as they are.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn import functional

from smdist.modelparallel.torch.tensor_splits.peers import Peers, is_silent
from smdist.modelparallel.torch.tensor_splits.region_borders import entered, joined_columns, summed


class Role(str, Enum):
    """Part that a module has in a split region; the module's docstring explains the values."""

    COLUMN = "column"
    JOINED = "joined"
    ROW = "row"
    VOCABULARY = "vocabulary"


class RegionEntry:
    """Entry of inputs to a split region; modules that share an input share one all-reduce.

    Args:
        peers: Ranks over which the region is split.
    """

    __slots__ = ("_latest", "_peers")  # without a dict, so that captures see no setting in it

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._latest: tuple[ReferenceType[Tensor], ReferenceType[Tensor]] | None = None

    @property
    def peers(self) -> Peers:
        """Ranks over which the region is split."""
        return self._peers

    def enter(self, tensor: Tensor) -> Tensor:
        """Return the input of a split region, whose gradient is summed over ranks.

        Projections of one input, such as those of queries, keys and values, get the same result, so
        the sum of their gradients takes one message. A capture, on tensors without values, sees
        each module by itself.
        """
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        if is_silent(tensor):
            return entered(tensor, self._peers)
        if self._latest is not None:
            before, made = self._latest[0](), self._latest[1]()
            if before is tensor and made is not None and made._version == tensor._version:
                return made
        made = entered(tensor, self._peers)
        self._latest = ref(tensor), ref(made)
        return made

    def leave(self) -> None:
        """Forget the latest input, at the end of the region."""
        self._latest = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RegionEntry:
        """Return an entry of the same ranks, which has seen no input."""
        made = memo[id(self)] = RegionEntry(self._peers)
        return made


class _SplitModule(nn.Module):
    _smp_entry: RegionEntry
    weight: nn.Parameter
    bias: nn.Parameter | None


class _Column(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return this rank's columns of the product."""
        return super().forward(self._smp_entry.enter(x))


class _JoinedOutput(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return the whole product, of which each rank has computed some columns."""
        own = super().forward(self._smp_entry.enter(x))
        self._smp_entry.leave()
        return joined_columns(own, self._smp_entry.peers)


class _Row(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return the sum over ranks of the products of their rows, with the bias added once."""
        weight = self.weight.t() if _is_conv1d(self) else self.weight
        self._smp_entry.leave()
        found = summed(functional.linear(x, weight), self._smp_entry.peers)
        return found if self.bias is None else found + self.bias.to(found.dtype)


class _Vocabulary(_SplitModule):
    padding_idx: int | None

    def forward(self, ids: Tensor) -> Any:
        """Return the embeddings of ids, of which each rank has some rows."""
        peers, rows = self._smp_entry.peers, self.weight.shape[0]
        own = ids - peers.rank * rows
        is_other = (own < 0) | (own >= rows)
        padding = None if self.padding_idx is None else self.padding_idx - peers.rank * rows
        if padding is not None and not 0 <= padding < rows:
            padding = None
        found = functional.embedding(own.masked_fill(is_other, 0), self.weight, padding)
        return summed(found.masked_fill(is_other.unsqueeze(-1), 0), peers)


_CLASSES: Final[dict[Role, type[_SplitModule]]] = {
    Role.COLUMN: _Column,
    Role.JOINED: _JoinedOutput,
    Role.ROW: _Row,
    Role.VOCABULARY: _Vocabulary,
}


_made: Final[dict[tuple[Role, type[nn.Module]], type[nn.Module]]] = {}


def _class(role: Role, plain: type[nn.Module]) -> type[nn.Module]:
    """Return the subclass of a module's class that computes a part of it; the same each time."""
    if (role, plain) not in _made:
        name = f"{role.value.capitalize()}{plain.__name__}"
        _made[role, plain] = type(name, (_CLASSES[role], plain), {"__module__": __name__})
    return _made[role, plain]


def is_product(module: nn.Module) -> bool:
    """Return True for a `nn.Linear`, and for a `Conv1D` of transformers, of no other forward."""
    return is_linear(module) or is_conv1d(module)


def is_linear(module: nn.Module) -> bool:
    """Return True for a module whose forward function is that of `nn.Linear`."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_conv1d(module: nn.Module) -> bool:
    """Return True for a `Conv1D` of transformers, whose weight is of shape (inputs, outputs)."""
    kind = type(module)
    return (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def is_table(module: nn.Module) -> bool:
    """Return True for a `nn.Embedding` without options that need the whole table."""
    if not isinstance(module, nn.Embedding) or type(module).forward is not nn.Embedding.forward:
        return False
    options: Any = module
    return not (options.max_norm is not None or options.scale_grad_by_freq or options.sparse)


def turn(module: nn.Module, role: Role, entry: RegionEntry) -> None:
    """Change a module in place, so that it computes this rank's part.

    Its parameters have to be this rank's parts already, or become them before the module runs.

    Args:
        module: A linear layer, a `Conv1D` of transformers, or an embedding.
        role: Part that the module has in its region.
        entry: Entry of the region.
    """
    degree = entry.peers.size
    module._smp_entry = entry  # type: ignore[assignment]
    module.__class__ = _class(role, type(module))
    if role in (Role.COLUMN, Role.JOINED) and _is_conv1d(module):
        module.nf = module.nf // degree  # type: ignore[operator, assignment]
    elif role in (Role.COLUMN, Role.JOINED):
        module.out_features = module.out_features // degree  # type: ignore[operator, assignment]
    elif role is Role.ROW and isinstance(module, nn.Linear):
        module.in_features //= degree


def _is_conv1d(module: nn.Module) -> bool:
    """Return True for a `Conv1D` of transformers that `turn` has changed."""
    return any(base.__qualname__ == "Conv1D" for base in type(module).__mro__)
