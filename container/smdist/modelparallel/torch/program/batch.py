# SPDX-License-Identifier: Apache-2.0
"""Batch of a model, in the form of a call's arguments, and its microbatches along dimension 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan.plan_check import divisors

Example = torch.Tensor | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Batch of one replica in one step.

    Attributes:
        example: A tensor, a tuple of positional arguments or a dict of keyword arguments.
        size: Number of samples: the length of dimension 0 of all tensors that have dimensions.
    """

    example: Example
    size: int

    @classmethod
    def of(cls, example: Example | Batch) -> Batch:
        """Make a batch of an example; return a Batch as it is.

        Raises:
            OptionError: The example is no batch: it has another type, no tensor, no tensor with
                dimensions, tensors of different lengths, or no samples.
        """
        if isinstance(example, Batch):
            return example
        _check_kind(example)
        lengths = {name: tensor.shape[0] for name, tensor in _tensors(example, "example")}
        if not lengths:
            what = "example has no tensor with a dimension"
            raise OptionError(
                what,
                "microbatches are cut along dimension 0",
                "Pass a whole batch",
                about="example",
            )
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            why = "microbatches are cut along dimension 0 of every tensor, the samples"
            hint = "Give all tensors as many samples, and make the others in the model"
            raise OptionError(
                f"example has dimensions 0 of different lengths ({said})",
                why,
                hint,
                about="example",
            )
        size = next(iter(lengths.values()))
        if size < 1:
            raise OptionError(
                "example is empty", "a batch has samples", "Pass a whole batch", about="example"
            )
        return cls(example=example, size=size)

    def microbatch(self, num_microbatches: int, index: int = 0) -> Example:
        """Return one of `num_microbatches` equal parts: the first, or the one with this index.

        Raises:
            OptionError: The batch cannot be cut into this many equal parts.
        """
        if num_microbatches < 1 or self.size % num_microbatches:
            raise OptionError(
                f"microbatches is {num_microbatches}",
                f"a batch of {self.size} cannot be cut into so many equal parts",
                f"Use one of {', '.join(map(str, divisors(self.size)))}",
                about="microbatches",
            )
        samples = self.size // num_microbatches
        rows = slice(index * samples, (index + 1) * samples)
        part: Example = _mapped(self.example, lambda tensor: _cut(tensor, rows))
        return part


def _check_kind(example: object) -> None:
    """Raise OptionError unless the example is a tensor, a tuple or a dict of named arguments."""
    if not isinstance(example, torch.Tensor | dict) and type(example) is not tuple:
        raise OptionError(
            f"example is {type(example).__name__}",
            "it is what the model is called with: a tensor, a tuple of positional arguments or"
            " a dict of keyword arguments",
            "Pass one of these",
            about="example",
        )
    odd = [key for key in example if not isinstance(key, str)] if type(example) is dict else []
    if odd:
        what, why = f"example has the key {odd[0]!r}", "its keys name arguments of forward"
        raise OptionError(what, why, "Pass a dict with those names, or a tuple", about="example")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors that are cut, with their paths in the example."""
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
    """Return samples of a tensor as a leaf, which requires a gradient if the tensor does."""
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)


def _mapped(value: Any, cut: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested data with every tensor cut; containers keep their types."""
    if isinstance(value, torch.Tensor):
        return cut(value) if value.dim() else value
    if isinstance(value, dict):
        return {key: _mapped(each, cut) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, cut) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, cut) for each in value)
    return value
