# SPDX-License-Identifier: Apache-2.0
"""Batch of a model: the arguments of a call of the model.

A batch can be split along dimension 0 into parts, called microbatches.
"""

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
    """Batch of one replica for one training step.

    Attributes:
        example: A tensor, a tuple of positional arguments or a dict of keyword arguments.
        size: Number of samples: the length of dimension 0 of all tensors that have dimensions.
    """

    example: Example
    size: int

    @classmethod
    def of(cls, example: Example | Batch) -> Batch:
        """Convert an example to a Batch; a Batch is returned unchanged.

        Raises:
            OptionError: The example is of another type, has no tensor with a dimension, has
                tensors with different numbers of samples, or has no samples.
        """
        if isinstance(example, Batch):
            return example
        _check_kind(example)
        lengths = {name: tensor.shape[0] for name, tensor in _tensors(example, "example")}
        if not lengths:
            what = "example has no tensor with a dimension"
            raise OptionError(
                what,
                "a batch is split into microbatches along dimension 0 of its tensors",
                "Pass a batch whose tensors have the samples along dimension 0",
                about="example",
            )
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            why = "a batch is split into microbatches along dimension 0 of all its tensors"
            hint = "Pass only tensors with the same length of dimension 0"
            raise OptionError(
                f"example has tensors with different lengths of dimension 0 ({listed})",
                why,
                hint,
                about="example",
            )
        size = next(iter(lengths.values()))
        if size < 1:
            raise OptionError(
                "example has no samples",
                "dimension 0 of its tensors has length 0",
                "Pass a batch of at least one sample",
                about="example",
            )
        return cls(example=example, size=size)

    def repeated(self, times: int) -> Batch:
        """Return a batch that has all samples several times, one copy after the other.

        Args:
            times: Number of copies, at least 1.
        """
        many = _mapped(self.example, lambda tensor: _again(tensor, times))
        return Batch(example=many, size=times * self.size)

    def microbatch(self, num_microbatches: int, index: int = 0) -> Example:
        """Return one microbatch, as arguments of the model: a part of the batch along dimension 0.

        Args:
            num_microbatches: Number of equal parts; must divide the number of samples.
            index: Number of the part, from 0.

        Raises:
            OptionError: The batch cannot be split into this many equal parts.
        """
        if num_microbatches < 1 or self.size % num_microbatches:
            raise OptionError(
                f"microbatches is {num_microbatches}",
                f"a batch of {self.size} samples cannot be split into that many equal parts",
                f"Use one of {', '.join(map(str, divisors(self.size)))}",
                about="microbatches",
                kind="indivisible",
            )
        samples = self.size // num_microbatches
        rows = slice(index * samples, (index + 1) * samples)
        part: Example = _mapped(self.example, lambda tensor: _cut(tensor, rows))
        return part


def _check_kind(example: object) -> None:
    """Raise OptionError unless the example is a tensor, a tuple or a dict of named arguments."""
    if not isinstance(example, torch.Tensor | dict) and type(example) is not tuple:
        raise OptionError(
            f"example is of type {type(example).__name__}",
            "it has to contain the model's arguments as a tensor, a tuple of positional arguments"
            " or a dict of keyword arguments",
            "Pass one of these",
            about="example",
        )
    odd = [key for key in example if not isinstance(key, str)] if type(example) is dict else []
    if odd:
        what, why = f"example has the key {odd[0]!r}", "its keys have to be argument names"
        hint = "Pass a dict with names of arguments of the model's forward function, or a tuple"
        raise OptionError(what, why, hint, about="example")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor in nested data with its path, such as "example['x'][0]".

    Tensors without a dimension are left out.

    Args:
        value: The data.
        name: Path of the data itself, with which all paths begin.
    """
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
    """Return some rows of a tensor, detached from autograd, with the tensor's `requires_grad`."""
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)


def _again(tensor: torch.Tensor, times: int) -> torch.Tensor:
    """Return the rows of a tensor several times, detached, with the tensor's `requires_grad`."""
    return torch.cat([tensor.detach()] * times).requires_grad_(tensor.requires_grad)


def _mapped(value: Any, cut: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested data with `cut` applied to every tensor that has a dimension.

    Containers keep their types, and other values stay unchanged.
    """
    if isinstance(value, torch.Tensor):
        return cut(value) if value.dim() else value
    if isinstance(value, dict):
        return {key: _mapped(each, cut) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, cut) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, cut) for each in value)
    return value
