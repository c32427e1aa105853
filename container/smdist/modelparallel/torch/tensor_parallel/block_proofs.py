# SPDX-License-Identifier: Apache-2.0
"""Proofs of splits of a model's blocks; blocks that are alike are proved once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.tensor_parallel import refusal_kinds
from smdist.modelparallel.torch.tensor_parallel.data_flow import Flow, TensorShape
from smdist.modelparallel.torch.tensor_parallel.proof import Refutation, WholeBlock
from smdist.modelparallel.torch.tensor_parallel.sequence_slices import SequenceSlices
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import Region


class BlockProofs:
    """Proofs of splits for one model and one number of ranks.

    Args:
        model: The whole model.
        flow: Flow of values between its products.
        degree: Number of ranks over which tensors are split.
        slices: Splits of sequences, which are tried after a proof; None to leave sequences whole.
        on_accelerator: True if the model will run on an accelerator.
    """

    def __init__(
        self, model: nn.Module, flow: Flow, degree: int, slices: SequenceSlices | None, *,
        on_accelerator: bool,
    ) -> None:  # fmt: skip
        self._model, self._flow, self._degree = model, flow, degree
        self._slices, self._on_accelerator = slices, on_accelerator
        self._known: dict[Any, Region | Refutation] = {}

    def of(self, block: str, tries: Iterable[Region], detail: Any = None) -> Region | Refutation:
        """Return the first split of a block that is proved; blocks that are alike are tried once.

        Args:
            block: Name of the block.
            tries: Splits to try.
            detail: What else the splits depend on.
        """
        module, call = self._model.get_submodule(block), self._flow.calls[block]
        unused = frozenset(self._flow.unused.get(block, ()))
        key = (_kind(module), detail, _settings(module), _form(call), unused)
        if key not in self._known:
            self._known[key] = self.first(module, call, tries, unused)
        return self._known[key]

    def first(
        self, block: nn.Module, call: Any, regions: Iterable[Region], unused: Collection[int] = ()
    ) -> Region | Refutation:
        """Return the first split that is proved; else the reason against the first one.

        A reason of dropout is returned before others, since that split is right without dropout.
        """
        try:
            whole = WholeBlock(block, call, unused, on_accelerator=self._on_accelerator)
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Refutation(
                refusal_kinds.UNPROVED, f"its block does not run alone ({first[:120]})"
            )
        against: Refutation | None = None
        for region in regions:
            found = whole.prove(region, self._degree)
            if isinstance(found, Region):
                return found if self._slices is None else self._slices.proved(whole, found)
            if against is None or found.kind == refusal_kinds.DROPOUT:
                against = found
        return against or Refutation(
            refusal_kinds.INDIVISIBLE,
            f"its widths and sections are not divisible by {self._degree}",
        )


def _kind(block: nn.Module) -> Any:
    """Return a key that is equal for blocks with modules and parameters that are alike."""
    modules = tuple((name, type(each)) for name, each in block.named_modules())
    shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
    return modules, shapes


def _form(call: Any) -> Any:
    """Return a key that is equal for calls with arguments of the same shapes."""
    leaves, form = flatten(call)
    is_plain = (bool, int, float, str, TensorShape, type(None))
    return form, tuple(leaf if isinstance(leaf, is_plain) else type(leaf) for leaf in leaves)


def _settings(block: nn.Module) -> Any:
    """Return the plain attributes of all modules of a block, such as rates of dropout."""
    return tuple(
        (name, key, value)
        for name, module in block.named_modules()
        for key, value in sorted(vars(module).items())
        if isinstance(value, (int, float, str)) and key not in ("layer_idx", "layer_id")
    )
