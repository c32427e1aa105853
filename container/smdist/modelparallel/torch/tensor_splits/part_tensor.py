# SPDX-License-Identifier: Apache-2.0
"""Tensor of the shape of a whole value, of which this rank has a part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.torch.program.pytree import flatten, unflatten


class PartTensor(Tensor):
    """Base class of tensors of which each rank has a part.

    A function of torch runs on the parts if `_on_parts` knows how. Any other function gets whole
    tensors, gathered from all ranks.
    """

    @abstractmethod
    def whole(self) -> Tensor:
        """Return the whole value, in the autograd graph; every rank has to call this."""

    @classmethod
    @abstractmethod
    def _on_parts(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a function on parts; NotImplemented if it needs whole tensors."""

    @classmethod
    @abstractmethod
    def _describes(cls, func: Any) -> bool:
        """Return True for a function that reads a shape, a dtype and the like, but no values."""

    @classmethod
    @abstractmethod
    def _refusal(cls, func: Any) -> str:
        """Return the message of the error about a function that can run on no tensor in parts."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch on the parts if it acts on each of them alone."""
        given = dict(kwargs or {})
        if cls._describes(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        found = cls._on_parts(func, args, given)
        return cls._on_wholes(func, args, given) if found is NotImplemented else found

    @classmethod
    def _on_wholes(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function of torch on whole tensors."""
        return func(*cls.wholes(args), **cls.wholes(kwargs))

    @classmethod
    def wholes(cls, value: Any) -> Any:
        """Return a nested value with whole tensors in place of those in parts; all ranks call this.

        A value without tensors in parts is returned itself.
        """
        leaves, form = flatten(value)
        if not any(isinstance(leaf, cls) for leaf in leaves):
            return value
        return unflatten(form, [leaf.whole() if isinstance(leaf, cls) else leaf for leaf in leaves])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse an operator that torch calls below autograd, where no gradient could be found."""
        raise TypeError(cls._refusal(func))

    def __deepcopy__(self, memo: Any) -> Any:
        """Return a copy of the whole value."""
        return self.whole().__deepcopy__(memo)  # type: ignore[no-untyped-call]
