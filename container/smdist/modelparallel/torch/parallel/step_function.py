# SPDX-License-Identifier: Apache-2.0
"""User's code of one step, the model's call in it, and its results.

The same code runs on every rank, once per microbatch, up to the model's call. Only the rank of the
last stage runs the code after that call. A step returns, for each tensor that the function
returned, the tensors of all microbatches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.executor import Arguments, Roots
from smdist.modelparallel.torch.program.pytree import flatten, unflatten


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """User's code of one step.

    Attributes:
        name: Name of the function, for messages.
        function: Function that runs one microbatch, including the model's call.
        cut: Function from a number of microbatches to the arguments of each.
        inputs: Data that the arguments are cut from; ranks of a pipeline compare it.
        size: Function that counts the samples in it; 0 if objects cut themselves.
        detaches: True if results of `function` are detached from the autograd graph.
    """

    name: str
    function: Callable[..., Any]
    cut: Callable[[int], list[Arguments]]
    inputs: Any
    size: Callable[[], int]
    detaches: bool = True


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class MicrobatchCall:
    """One microbatch of a step, from the start of the user's code to its end.

    Attributes:
        answer: Function that the model's call runs on this rank.
        scale: Factor of this microbatch's gradients.
        roots: Tensors where the backward pass starts, with their gradients.
        is_open: True while the user's code runs.
    """

    answer: Callable[[Arguments], Any]
    scale: float = 1.0
    roots: Roots = field(default_factory=list)
    is_open: bool = True
    num_calls: int = 0

    def call(self, arguments: Arguments) -> Any:
        """Run the model's call.

        Raises:
            OptionError: The model was called before in this microbatch.
        """
        self.num_calls += 1
        require(
            self.num_calls == 1,
            what="the model is called twice in one step function",
            why="a microbatch goes through the pipeline once",
            hint="Put both calls into one module and give that to the model, or use two steps",
        )
        output = self.answer(arguments)
        return watched(output, self._refusal())

    def backward(self, tensors: Any, gradients: Any) -> None:
        """Record where the backward pass starts.

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
            hint="Pass one grad_tensors for each, None for a scalar",
        )
        self.roots += [self._root(tensor, own) for tensor, own in zip(starts, given, strict=True)]

    def _root(self, tensor: Any, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        has_gradient = isinstance(tensor, Tensor) and tensor.requires_grad
        require(
            has_gradient,
            what=f"backward got a {type(tensor).__name__} without a gradient",
            why="nothing that it was computed from is trained",
            hint="Pass what follows from the model's output, outside of torch.no_grad()",
        )
        assert isinstance(tensor, Tensor)
        require(
            gradient is not None or tensor.numel() == 1,
            what=f"backward got a tensor of shape {tuple(tensor.shape)}",
            why="only one number can start the backward pass by itself",
            hint="Pass its mean or sum, or grad_tensors",
        )
        start = torch.ones_like(tensor) if gradient is None else gradient
        return tensor, start * self.scale

    def _refusal(self) -> Callable[[Tensor], None]:
        """Return a hook that refuses a plain `backward` in the user's code.

        The autograd graph holds the hook, so the hook must not hold the roots, which hold it:
        Python's garbage collector does not see that cycle, and would never free it.
        """
        microbatch_call = ref(self)

        def refuse_early(_: Tensor) -> None:
            found = microbatch_call()
            if found is not None and found.is_open:
                raise plain_backward()

        return refuse_early


def watched(output: Any, hook: Callable[[Tensor], None]) -> Any:
    """Return a model's output, with a hook where a backward pass enters it."""
    for leaf in flatten(output)[0]:
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:  # parameters outlive the call
            leaf.register_hook(hook)  # type: ignore[no-untyped-call]
    return output


def plain_backward() -> OptionError:
    """Return the error for a call of `backward` on a tensor."""
    return OptionError(
        "loss.backward() of what the model returned",
        "the backward pass goes through all stages and sums over replicas: the model does that",
        "Call model.backward(loss)",
    )


def example_of(arguments: Arguments, model: nn.Module) -> Any:
    """Return the arguments of a model as an example: a tuple, or a dict if there are keywords.

    Raises:
        OptionError: There are keywords, and positional arguments without a name.
    """
    args, kwargs = arguments
    if not kwargs:
        return args
    return kwargs if not args else _by_name(model, arguments)


def normal(arguments: Arguments, model: nn.Module) -> Arguments:
    """Return the same call with all arguments by position, or all by keyword.

    Raises:
        OptionError: There are keywords, and positional arguments without a name.
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
        hint="Pass all arguments by position, or all by keyword",
    )
    names = list(signature.parameters)[: len(args)]
    return {**dict(zip(names, args, strict=True)), **kwargs}


class StepOutput(Sequence[Tensor]):
    """One tensor of a step's result, for every microbatch; equal on all ranks of a pipeline.

    It has SMP v1's methods, and is a sequence: `len(output)`, `output[0]`, `for each in output`.

    Attributes:
        outputs: Tensors by microbatch.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Tensor:
        """Return the mean over microbatches, element by element."""
        return self.reduce_sum() / len(self.outputs)

    def reduce_sum(self) -> Tensor:
        """Return the sum over microbatches, element by element.

        Raises:
            OptionError: Results of microbatches have several shapes.
        """
        return self.stack().sum(0)

    def concat(self) -> Tensor:
        """Return one tensor, concatenated along dimension 0 as for the whole batch."""
        if any(each.dim() == 0 for each in self.outputs):
            return self.stack()
        return torch.cat(self.outputs)

    def stack(self) -> Tensor:
        """Return one tensor with microbatches as its new dimension 0.

        Raises:
            OptionError: Results of microbatches have several shapes.
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
        """Return the text without a format; refuse a format, since numbers need the mean.

        Raises:
            OptionError: There is a format.
        """
        require(
            not spec,
            what=f"a StepOutput was formatted as {spec!r}",
            why=f"it has {len(self.outputs)} tensors, one per microbatch",
            hint=f"Format the mean: f'{{loss.reduce_mean():{spec}}}'",
        )
        return repr(self)

    def __float__(self) -> float:
        """Refuse a conversion to a number; the error names the mean as its replacement."""
        raise OptionError(
            "a StepOutput is no number",
            f"it has {len(self.outputs)} tensors, one per microbatch",
            "Call float(loss.reduce_mean())",
        )

    def item(self) -> float:
        """Refuse a conversion to a number; the error names the mean as its replacement."""
        return float(self)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def gathered(results: Sequence[Any]) -> Any:
    """Gather results by microbatch into one of the same form; tensors become a StepOutput each.

    Other leaves become a list by microbatch; None stays None. If microbatches return different
    forms, the result is the list of what they returned.
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
