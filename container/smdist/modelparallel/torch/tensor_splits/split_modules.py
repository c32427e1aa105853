# SPDX-License-Identifier: Apache-2.0
"""Modules of which each rank computes a part: columns or rows of a product, rows of a table.

A module is changed in place: its class becomes a subclass of its class, as in FSDP2. So names,
hooks, `isinstance` and initialisation by type stay as they are.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

from smdist.modelparallel.torch.tensor_splits.part_modules import (
    BorderModule,
    ExpertsModule,
    PartModule,
    PartValues,
)
from smdist.modelparallel.torch.tensor_splits.region_borders import entered
from smdist.modelparallel.torch.tensor_splits.region_entry import RegionEntry, Role
from smdist.modelparallel.torch.tensor_splits.split_attention import SplitAttention
from smdist.modelparallel.torch.tensor_splits.vocab_parallel_logits import logits_of


class _SplitModule(nn.Module):
    _smp_entry: RegionEntry
    weight: nn.Parameter
    bias: nn.Parameter | None


class _Column(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return this rank's columns of the product."""
        x = self._smp_entry.enter(x)
        with self._smp_entry.saving():
            return super().forward(x)


class _JoinedOutput(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return the whole product, of which each rank has computed some columns."""
        x = self._smp_entry.enter(x)
        with self._smp_entry.saving():
            own = super().forward(x)
        self._smp_entry.leave()
        return logits_of(own, self._smp_entry.peers)


class _Row(_SplitModule):
    def forward(self, x: Tensor) -> Any:
        """Return the sum over ranks of the products of their rows, with the bias added once."""
        weight = self.weight.t() if _is_conv1d(self) else self.weight
        self._smp_entry.leave()
        found = self._smp_entry.reduced(functional.linear(x, weight))
        return found if self.bias is None else found + self.bias.to(found.dtype)


class _InnerRow(_Row):
    def forward(self, x: Tensor) -> Any:
        """Return the sum over ranks, whose gradient is summed, too: parts use it."""
        return entered(super().forward(x), self._smp_entry.peers)


class _Vocabulary(nn.Embedding):
    _smp_entry: RegionEntry

    def forward(self, ids: Tensor) -> Any:
        """Return the embeddings of ids, of which each rank has some rows."""
        peers, rows = self._smp_entry.peers, self.weight.shape[0]
        own = ids - peers.rank * rows
        is_other = (own < 0) | (own >= rows)
        padding = None if self.padding_idx is None else self.padding_idx - peers.rank * rows
        if padding is not None and not 0 <= padding < rows:
            padding = None
        found = functional.embedding(own.masked_fill(is_other, 0), self.weight, padding)
        return self._smp_entry.reduced(found.masked_fill(is_other.unsqueeze(-1), 0))


_CLASSES: Final[dict[Role, type[nn.Module]]] = {
    Role.COLUMN: _Column,
    Role.JOINED: _JoinedOutput,
    Role.ROW: _Row,
    Role.INNER: _InnerRow,
    Role.VOCABULARY: _Vocabulary,
    Role.PART: PartModule,
    Role.BORDER: BorderModule,
    Role.ATTENTION: SplitAttention,
    Role.EXPERTS: ExpertsModule,
}


_made: Final[dict[tuple[Role, type[nn.Module]], type[nn.Module]]] = {}


def _class(role: Role, plain: type[nn.Module]) -> type[nn.Module]:
    """Return the subclass of a module's class that computes a part of it; the same each time.

    The forward function of an embedding's class may call that of `nn.Embedding`, in whose place is
    that of the part then.
    """
    if (role, plain) not in _made:
        name = f"{role.value.capitalize()}{plain.__name__}"
        bases: tuple[type[nn.Module], ...] = (_CLASSES[role], plain)
        if role is Role.ATTENTION:
            bases = (SplitAttention,) if plain is nn.MultiheadAttention else (SplitAttention, plain)
        if role is Role.VOCABULARY:
            bases = (_Vocabulary,) if plain is nn.Embedding else (plain, _Vocabulary)
        _made[role, plain] = type(name, bases, {"__module__": __name__})
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
    if not isinstance(module, nn.Embedding):
        return False
    options: Any = module
    return not (options.max_norm is not None or options.scale_grad_by_freq or options.sparse)


def turn(
    module: nn.Module, role: Role, entry: RegionEntry, values: PartValues | None = None
) -> None:
    """Change a module in place, so that it computes this rank's part.

    Its parameters have to be this rank's parts already, or become them before the module runs.

    Args:
        module: A linear layer, a `Conv1D` of transformers, an embedding, or any module whose role
            is "part", "border" or "experts".
        role: Part that the module has in its region.
        entry: Entry of the region.
        values: Values that pass between a "part", "border" or "experts" and what is outside.
    """
    if role is Role.PART and values in (None, PartValues()):
        return
    module._smp_entry = entry  # type: ignore[assignment]
    if role in (Role.PART, Role.BORDER, Role.EXPERTS):
        module._smp_values = values or PartValues()  # type: ignore[assignment]
        if module._smp_values.widths:  # type: ignore[union-attr]
            module._smp_is_unit = True  # type: ignore[assignment]
    module.__class__ = _class(role, type(module))
    _set_features(module, role, entry.peers.size)


def _set_features(module: nn.Module, role: Role, degree: int) -> None:
    """Set the numbers of inputs and outputs of a product to those of a part."""
    if role in (Role.COLUMN, Role.JOINED) and _is_conv1d(module):
        module.nf = module.nf // degree  # type: ignore[operator, assignment]
    elif role in (Role.COLUMN, Role.JOINED):
        module.out_features = module.out_features // degree  # type: ignore[operator, assignment]
    elif role in (Role.ROW, Role.INNER) and isinstance(module, nn.Linear):
        module.in_features //= degree


def _is_conv1d(module: nn.Module) -> bool:
    """Return True for a `Conv1D` of transformers that `turn` has changed."""
    return any(base.__qualname__ == "Conv1D" for base in type(module).__mro__)
