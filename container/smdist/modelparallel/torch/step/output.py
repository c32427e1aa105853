# SPDX-License-Identifier: Apache-2.0
"""What a step returns: for each tensor that the function returned, all microbatches of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.tree import flatten, unflatten


class StepOutput(Sequence[Tensor]):
    """One tensor of a step's result, for every microbatch; the same on all ranks of a pipeline.

    As in SMP v1. It is a sequence too: `len(output)`, `output[0]`, `for each in output`.

    Attributes:
        outputs: By microbatch.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Tensor:
        """The mean over microbatches, element by element."""
        return self.reduce_sum() / len(self.outputs)

    def reduce_sum(self) -> Tensor:
        """The sum over microbatches, element by element.

        Raises:
            OptionError: Microbatches have results of several shapes.
        """
        return self.stack().sum(0)

    def concat(self) -> Tensor:
        """One tensor, along dimension 0: as the whole batch would give it."""
        if any(each.dim() == 0 for each in self.outputs):
            return self.stack()
        return torch.cat(self.outputs)

    def stack(self) -> Tensor:
        """One tensor with a new dimension 0: the microbatches.

        Raises:
            OptionError: Microbatches have results of several shapes.
        """
        shapes = {tuple(each.shape) for each in self.outputs}
        if len(shapes) > 1:
            raise OptionError(
                f"microbatches returned tensors of shapes {sorted(shapes)}",
                "only equal ones can be stacked or added",
                "Use concat(), or outputs",
            )
        return torch.stack(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.outputs)

    def __getitem__(self, index: Any) -> Any:
        return self.outputs[index]

    def __format__(self, spec: str) -> str:
        """Without a format as text; a number is asked of the mean.

        Raises:
            OptionError: There is a format.
        """
        require(
            not spec,
            what=f"a StepOutput was formatted as {spec!r}",
            why=f"it has {len(self.outputs)} tensors, one per microbatch",
            mend=f"Format the mean: f'{{loss.reduce_mean():{spec}}}'",
        )
        return repr(self)

    def __float__(self) -> float:
        """Not here: raises what to do instead."""
        raise OptionError(
            "a StepOutput is no number",
            f"it has {len(self.outputs)} tensors, one per microbatch",
            "Call float(loss.reduce_mean())",
        )

    def item(self) -> float:
        """Not here: raises what to do instead."""
        return float(self)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def gathered(results: Sequence[Any]) -> Any:
    """Results by microbatch as one of the same form: tensors become a StepOutput each.

    What is no tensor becomes a list by microbatch; None stays None. Where microbatches return
    different forms, the result is the list of what they returned.
    """
    flat = [flatten(result) for result in results]
    form = flat[0][1]
    if any(other != form for _, other in flat):
        return list(results)
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return unflatten(form, [_column(list(column)) for column in columns])


def _column(leaves: list[Any]) -> Any:
    if all(isinstance(leaf, Tensor) for leaf in leaves):
        return StepOutput(leaves)
    return None if all(leaf is None for leaf in leaves) else leaves
