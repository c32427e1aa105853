# SPDX-License-Identifier: Apache-2.0
"""Proof that the sequence after a split region can be split over ranks, too.

The region runs once more on simulated ranks, with slices of sequences as its inputs, and with a
reduce-scatter in place of the sum over ranks at its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import nn

from smdist.modelparallel.torch.tensor_parallel.proof import Refutation, WholeBlock
from smdist.modelparallel.torch.tensor_parallel.refusal_kinds import COMPILED, NO_SEQUENCE, NO_SUM
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import Region, Unsliced
from smdist.modelparallel.torch.tensor_splits import Role

_ENDS: Final = (Role.ROW, Role.VOCABULARY, Role.ATTENTION)  # roles that end with a sum over ranks


class SequenceSlices:
    """Slices of the sequences between the split regions of a model, as far as they are proved.

    Args:
        model: The whole model.
        degree: Number of ranks.
    """

    def __init__(self, model: nn.Module, degree: int) -> None:
        self._degree = degree
        self._compiled = [name for name, each in model.named_modules() if _is_compiled(each)]

    def proved(self, block: WholeBlock, region: Region) -> Region:
        """Return a proved region with slices of sequences after it, or the reason against them.

        Args:
            block: Block on a copy of which the region was proved.
            region: The region, with names in the block.
        """
        reason = self._reason(block, region)
        if reason is not None:
            return replace(region, unsliced=reason)
        found = block.prove(replace(region, is_sliced=True), self._degree)
        if isinstance(found, Refutation):
            return replace(region, unsliced=Unsliced(kind=found.kind, text=found.text))
        return found

    def _reason(self, block: WholeBlock, region: Region) -> Unsliced | None:
        if self._compiled:
            text = f"torch.compile compiles {self._compiled[0]!r}"
            return Unsliced(kind=COMPILED, text=text)
        if not any(each.role in _ENDS for each in region.modules):
            text = "no sum of whole sequences over ranks is at its end"
            return Unsliced(kind=NO_SUM, text=text)
        if not block.has_sequence(self._degree):
            text = (
                "its output is not of shape (samples, positions, width), with at least"
                f" {self._degree} positions"
            )
            return Unsliced(kind=NO_SEQUENCE, text=text)
        return None


def _is_compiled(module: nn.Module) -> bool:
    name = type(module).__name__
    return name == "OptimizedModule" or module._compiled_call_impl is not None
