# SPDX-License-Identifier: Apache-2.0
"""A batch as a model is called with it, and how it is cut into microbatches: along dimension 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan.check import divisors

Example = torch.Tensor | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one replica works on in one step.

    Attributes:
        example: A tensor, a tuple of positional arguments or a dict of keyword arguments.
        size: Samples in it: the length of dimension 0 of all its tensors that have dimensions.
    """

    example: Example
    size: int

    @classmethod
    def of(cls, example: Example | Batch) -> Batch:
        """Look at an example; a batch is one.

        Raises:
            OptionError: It is no batch: another type, no tensor, none with dimensions, tensors of
                different lengths, or empty ones.
        """
        if isinstance(example, Batch):
            return example
        if not isinstance(example, torch.Tensor | dict) and type(example) is not tuple:
            raise OptionError(
                f"example is {type(example).__name__}",
                "it is what the model is called with: a tensor, a tuple of positional arguments or"
                " a dict of keyword arguments",
                "Pass one of these",
            )
        odd = [key for key in example if not isinstance(key, str)] if type(example) is dict else []
        if odd:
            what, why = f"example has the key {odd[0]!r}", "its keys name arguments of forward"
            raise OptionError(what, why, "Pass a dict with those names, or a tuple")
        lengths = {name: tensor.shape[0] for name, tensor in _tensors(example, "example")}
        if not lengths:
            what = "example has no tensor with a dimension"
            raise OptionError(what, "microbatches are cut along dimension 0", "Pass a whole batch")
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            why = "microbatches are cut along dimension 0 of every tensor, the samples"
            mend = "Give all tensors as many samples, and make the others in the model"
            raise OptionError(f"example has dimensions 0 of different lengths ({said})", why, mend)
        size = next(iter(lengths.values()))
        if size < 1:
            raise OptionError("example is empty", "a batch has samples", "Pass a whole batch")
        return cls(example=example, size=size)

    def microbatch(self, num_microbatches: int, index: int = 0) -> Example:
        """One of so many equal parts: the first, or that of an index.

        Raises:
            OptionError: The batch cannot be cut so.
        """
        if num_microbatches < 1 or self.size % num_microbatches:
            raise OptionError(
                f"microbatches is {num_microbatches}",
                f"a batch of {self.size} cannot be cut into so many equal parts",
                f"Use one of {', '.join(map(str, divisors(self.size)))}",
            )
        samples = self.size // num_microbatches
        rows = slice(index * samples, (index + 1) * samples)
        part: Example = _mapped(self.example, lambda tensor: _cut(tensor, rows))
        return part


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """All that are cut, with their places in the example."""
    if isinstance(value, torch.Tensor):
        if value.dim():
            yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _tensors(each, f"{name}[{index}]")


def _cut(tensor: torch.Tensor, rows: slice) -> torch.Tensor:
    """Samples of a tensor: a leaf, which has a gradient of its own where the tensor has one."""
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)


def _mapped(value: Any, cut: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with every such tensor cut; what holds them keeps its type."""
    if isinstance(value, torch.Tensor):
        return cut(value) if value.dim() else value
    if isinstance(value, dict):
        return {key: _mapped(each, cut) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, cut) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, cut) for each in value)
    return value
