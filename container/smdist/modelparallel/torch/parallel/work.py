# SPDX-License-Identifier: Apache-2.0
"""What the user wants done with the model in one step, and what happens where the model is called.

The same code of the user's runs on every rank, once per microbatch. It goes on as far as the call
of the model; where it goes on behind it is for the rank of the last stage to know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.executor import Arguments, Roots
from smdist.modelparallel.torch.tree import flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The user's code of one step.

    Attributes:
        name: Of the function, for messages.
        function: Runs one microbatch, the model's call included.
        cut: The arguments of `function` for each of so many microbatches.
        inputs: What they are cut from: pipeline ranks compare it.
        size: Counts the samples in it; 0 where objects cut themselves.
        detaches: Whether what `function` returns is cut from the graph of gradients.
    """

    name: str
    function: Callable[..., Any]
    cut: Callable[[int], list[Arguments]]
    inputs: Any
    size: Callable[[], int]
    detaches: bool = True


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Scene:
    """One microbatch of a step, from the start of the user's code to its end.

    Attributes:
        answer: What the model's call does here.
        scale: What gradients of this microbatch count.
        roots: Where the backward pass starts.
        is_open: Whether the user's code still runs.
    """

    answer: Callable[[Arguments], Any]
    scale: float = 1.0
    roots: Roots = field(default_factory=list)
    is_open: bool = True
    num_calls: int = 0

    def call(self, arguments: Arguments) -> Any:
        """The model is called.

        Raises:
            OptionError: It was called before in this microbatch.
        """
        self.num_calls += 1
        require(
            self.num_calls == 1,
            what="the model is called twice in one step function",
            why="a microbatch goes through the pipeline once",
            mend="Put both calls into one module and give that to the model, or use two steps",
        )
        output = self.answer(arguments)
        return watched(output, self._refusal())

    def backward(self, tensors: Any, gradients: Any) -> None:
        """Note where the backward pass starts.

        Raises:
            OptionError: Gradients do not fit the tensors, or a tensor has no gradient.
        """
        starts = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [None] * len(starts) if gradients is None else gradients
        given = [given] if isinstance(given, Tensor) else list(given)
        require(
            len(given) == len(starts),
            what=f"backward got {len(starts)} tensors and {len(given)} gradients",
            why="each tensor starts with its own",
            mend="Pass one grad_tensors for each, None for a scalar",
        )
        self.roots += [self._root(tensor, own) for tensor, own in zip(starts, given, strict=True)]

    def _root(self, tensor: Any, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        has_gradient = isinstance(tensor, Tensor) and tensor.requires_grad
        require(
            has_gradient,
            what=f"backward got a {type(tensor).__name__} without a gradient",
            why="nothing that it was computed from is trained",
            mend="Pass what follows from the model's output, outside of torch.no_grad()",
        )
        assert isinstance(tensor, Tensor)
        require(
            gradient is not None or tensor.numel() == 1,
            what=f"backward got a tensor of shape {tuple(tensor.shape)}",
            why="only one number can start the backward pass by itself",
            mend="Pass its mean or sum, or grad_tensors",
        )
        start = torch.ones_like(tensor) if gradient is None else gradient
        return tensor, start * self.scale

    def _refusal(self) -> Callable[[Tensor], None]:
        """Belongs to the graph that the roots end, so it must not hold them: nothing would ever be
        freed, as the graph is not seen by Python's collector of cycles.
        """
        scene = ref(self)

        def refuse_early(_: Tensor) -> None:
            found = scene()
            if found is not None and found.is_open:
                raise plain_backward()

        return refuse_early


def watched(output: Any, hook: Callable[[Tensor], None]) -> Any:
    """What a model returns; the hook is called where a backward pass begins to go through it."""
    for leaf in flatten(output)[0]:
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:  # parameters outlive the call
            leaf.register_hook(hook)  # type: ignore[no-untyped-call]
    return output


def plain_backward() -> OptionError:
    """Somebody called `backward` of a tensor."""
    return OptionError(
        "loss.backward() of what the model returned",
        "the backward pass goes through all stages and sums over replicas: the model does that",
        "Call model.backward(loss)",
    )


def example_of(arguments: Arguments, model: nn.Module) -> Any:
    """What a model is called with, as an example: a tuple, or a dict where there are keywords.

    Raises:
        OptionError: There are keywords beside positions that have no name.
    """
    args, kwargs = arguments
    if not kwargs:
        return args
    return kwargs if not args else _by_name(model, arguments)


def normal(arguments: Arguments, model: nn.Module) -> Arguments:
    """The same call with all arguments by position, or all by keyword.

    Raises:
        OptionError: There are keywords beside positions that have no name.
    """
    example = example_of(arguments, model)
    return ((), dict(example)) if isinstance(example, dict) else (example, {})


def _by_name(model: nn.Module, arguments: Arguments) -> dict[str, Any]:
    args, kwargs = arguments
    signature = inspect.signature(model.forward)
    kinds = {p.kind for p in list(signature.parameters.values())[: len(args)]}
    named = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD} and len(args) <= len(
        signature.parameters
    )
    require(
        named,
        what=f"{type(model).__name__} is called with {len(args)} positions and with keywords",
        why="its forward function has no names for these positions",
        mend="Pass all arguments by position, or all by keyword",
    )
    names = list(signature.parameters)[: len(args)]
    return {**dict(zip(names, args, strict=True)), **kwargs}
