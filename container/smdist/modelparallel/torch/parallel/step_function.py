# SPDX-License-Identifier: Apache-2.0
"""User's code of one step, the call of the model in it, and the results of the step.

The user's code runs on every rank, once per microbatch, up to the call of the model. The code after
this call runs only on the rank of the last stage. If the code returns a tensor, the step returns a
`StepOutput`, which has the tensors of all microbatches.
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
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.program.pytree import flatten, unflatten
from smdist.modelparallel.torch.tensor_splits import VocabParallelLogits


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedBatch(Batch):
    """Batch of a step function, which computes the model's arguments from this batch.

    Attributes:
        cut_into: Function that gets a number of microbatches, splits the batch, and returns the
            model's arguments in the first microbatch.
    """

    cut_into: Callable[[int], Any]

    def microbatch(self, num_microbatches: int, index: int = 0) -> Any:
        """Return the model's arguments in the first of `num_microbatches` microbatches.

        Args:
            num_microbatches: Number of equal parts of the batch.
            index: Number of the microbatch; only 0 is possible.
        """
        assert index == 0
        return self.cut_into(num_microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """User's code of one step, with its arguments.

    Attributes:
        name: Name of the user's function, for messages.
        function: Function that runs one microbatch, including the model's call.
        cut: Function that gets a number of microbatches, and returns the arguments of each
            microbatch.
        inputs: Arguments for the whole step, which ranks of a pipeline compare.
        size: Function that returns the number of samples in `inputs`. It returns 0 if only objects
            with a method `smp_slice` are split, since their length is unknown.
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
    """One run of the user's code for a microbatch.

    Attributes:
        answer: Function that runs in place of the model on this rank.
        scale: Factor for the gradients of this microbatch: the loss scale, divided by the number of
            microbatches if gradients are averaged.
        roots: (tensor, gradient) pairs from which the backward pass starts.
        is_open: True while the user's code runs.
        num_calls: Number of calls of the model so far.
    """

    answer: Callable[[Arguments], Any]
    scale: float = 1.0
    roots: Roots = field(default_factory=list)
    is_open: bool = True
    num_calls: int = 0

    def call(self, arguments: Arguments) -> Any:
        """Run this rank's stage in place of the model, and return the model's output.

        Args:
            arguments: Positional arguments and keyword arguments of the model's call.

        Raises:
            OptionError: The model was already called in this microbatch.
            PassedOn: The stage is not the last one, so there is no output. User code must not catch
                this exception.
        """
        self.num_calls += 1
        if self.num_calls != 1:
            raise OptionError(
                "the model is called twice in one step function",
                "a step runs each microbatch through the pipeline once",
                "Put both calls into the forward function of one module and make that the parallel"
                " model, or use two steps",
                kind="called_twice",
            )
        output = self.answer(arguments)
        return watched(output, self._refusal())

    def backward(self, tensors: Any, gradients: Any) -> None:
        """Record where the backward pass starts. The pass itself runs after the user's code.

        Args:
            tensors: Tensor or tensors from which the backward pass starts, such as the loss.
            gradients: Gradient of each tensor; None stands for 1, for tensors with one element.

        Raises:
            OptionError: The numbers of tensors and gradients differ, or a tensor requires no
                gradient, or the gradient of a tensor with several elements is missing.
        """
        starts = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [None] * len(starts) if gradients is None else gradients
        given = [given] if isinstance(given, Tensor) else list(given)
        require(
            len(given) == len(starts),
            what=f"backward got {len(starts)} tensors and {len(given)} gradients",
            why="each tensor needs a gradient of its own",
            hint="Pass grad_tensors with one item for each tensor. The item may be None if the"
            " tensor has one element",
            about="grad_tensors",
        )
        self.roots += [self._root(tensor, own) for tensor, own in zip(starts, given, strict=True)]

    def _root(self, tensor: Any, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        """Check a tensor that the user passed to `model.backward`, and return it with its gradient.

        The returned gradient is multiplied by the loss scale.

        Args:
            tensor: Tensor from which the backward pass starts, such as the loss.
            gradient: Gradient of the tensor; None stands for 1.

        Raises:
            OptionError: The tensor requires no gradient, or has several elements and no gradient.
        """
        has_gradient = isinstance(tensor, Tensor) and tensor.requires_grad
        require(
            has_gradient,
            what=f"backward got a {type(tensor).__name__} that requires no gradient",
            why="no trained parameter took part in its computation",
            hint="Pass a loss that is computed from the model's output, outside of torch.no_grad()",
            about="tensors",
        )
        assert isinstance(tensor, Tensor)
        require(
            gradient is not None or tensor.numel() == 1,
            what=f"backward got a tensor of shape {tuple(tensor.shape)} without its gradient",
            why="only the gradient of a tensor with one element has a default, 1",
            hint="Pass its mean or sum, or grad_tensors",
            about="grad_tensors",
        )
        start = torch.ones_like(tensor) if gradient is None else gradient
        return tensor, start * self.scale

    def _refusal(self) -> Callable[[Tensor], None]:
        """Return a tensor hook that raises an error for `loss.backward()` in the user's code.

        The hook must not refer to `roots`. The autograd graph refers to the hook, and `roots` refer
        to the graph. Python's garbage collector could not free this cycle.
        """
        microbatch_call = ref(self)

        def refuse_early(_: Tensor) -> None:
            found = microbatch_call()
            if found is not None and found.is_open:
                raise plain_backward()

        return refuse_early


def watched(output: Any, hook: Callable[[Tensor], None]) -> Any:
    """Register a hook on the tensors of a model's output; return the output.

    Args:
        output: Nested output of the model.
        hook: Function that autograd calls with a tensor's gradient when a backward pass reaches it.
    """
    for leaf in flatten(output)[0]:
        tensor = leaf.part if isinstance(leaf, VocabParallelLogits) else leaf
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:  # parameters outlive the call
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    return output


def plain_backward() -> OptionError:
    """Return the error for a call of `loss.backward()` in place of `model.backward(loss)`."""
    return OptionError(
        "backward() is called on a tensor that is computed from the model's output",
        "a tensor cannot run the backward pass of stages on other ranks",
        "Call model.backward(loss) in place of loss.backward()",
        kind="plain_backward",
    )


def example_of(arguments: Arguments, model: nn.Module) -> Any:
    """Return a model's arguments as one object: a tuple, or a dict if any is a keyword argument.

    Args:
        arguments: Positional arguments and keyword arguments of the model's call.
        model: Model; the signature of its forward function gives names to positional arguments.

    Raises:
        OptionError: There are keyword arguments, and a positional argument has no name.
    """
    args, kwargs = arguments
    if not kwargs:
        return args
    return kwargs if not args else _by_name(model, arguments)


def normal(arguments: Arguments, model: nn.Module) -> Arguments:
    """Convert the arguments of a model's call: all positional, or all by keyword.

    The result has all arguments by keyword if the call has at least one keyword argument.

    Args:
        arguments: Positional arguments and keyword arguments.
        model: Model; the signature of its forward function gives names to positional arguments.

    Raises:
        OptionError: There are keyword arguments, and a positional argument has no name.
    """
    example = example_of(arguments, model)
    return ((), dict(example)) if isinstance(example, dict) else (example, {})


def _by_name(model: nn.Module, arguments: Arguments) -> dict[str, Any]:
    """Return all arguments of a model's call as a dict by name.

    Args:
        model: Model; the signature of its forward function gives names to positional arguments.
        arguments: Positional arguments and keyword arguments.

    Raises:
        OptionError: A positional argument has no name in the forward function's signature.
    """
    args, kwargs = arguments
    signature = inspect.signature(model.forward)
    kinds = {p.kind for p in list(signature.parameters.values())[: len(args)]}
    named = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD} and len(args) <= len(
        signature.parameters
    )
    require(
        named,
        what=f"{type(model).__name__} is called with {len(args)} positional arguments and with"
        " keywords",
        why="its forward function has no names for the positional arguments",
        hint="Pass all arguments by position, or all by keyword",
    )
    names = list(signature.parameters)[: len(args)]
    return {**dict(zip(names, args, strict=True)), **kwargs}


class StepOutput(Sequence[Tensor]):
    """Tensors that a step returned, one for each microbatch; equal on all ranks of a pipeline.

    The class has SMP v1's methods, and is a sequence: `len(output)`, `output[0]`,
    `for each in output`.

    Attributes:
        outputs: List of the tensors, in the order of microbatches.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Tensor:
        """Return the mean over microbatches, element by element.

        Raises:
            OptionError: Tensors of microbatches have different shapes.
        """
        return self.reduce_sum() / len(self.outputs)

    def reduce_sum(self) -> Tensor:
        """Return the sum over microbatches, element by element.

        Raises:
            OptionError: Tensors of microbatches have different shapes.
        """
        return self.stack().sum(0)

    def concat(self) -> Tensor:
        """Return one tensor for the whole batch: the tensors concatenated along dimension 0.

        Scalars are put into a vector, with one element for each microbatch.
        """
        if any(each.dim() == 0 for each in self.outputs):
            return self.stack()
        return torch.cat(self.outputs)

    def stack(self) -> Tensor:
        """Return the tensors stacked along a new dimension 0, which numbers the microbatches.

        Raises:
            OptionError: Tensors of microbatches have different shapes.
        """
        shapes = {tuple(each.shape) for each in self.outputs}
        if len(shapes) > 1:
            raise OptionError(
                f"microbatches returned tensors of shapes {sorted(shapes)}",
                "only tensors of equal shapes can be stacked or added",
                "Use concat(), or read single tensors from the list `outputs`",
                kind="shapes",
            )
        return torch.stack(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.outputs)

    def __getitem__(self, index: Any) -> Any:
        return self.outputs[index]

    def __format__(self, spec: str) -> str:
        """Return the text of the object; raise an error for a format such as ".3f".

        Args:
            spec: Format. It must be empty, since a StepOutput is not a number: it has a tensor for
                each microbatch.

        Raises:
            OptionError: The format is not empty.
        """
        require(
            not spec,
            what=f"a StepOutput was formatted as {spec!r}",
            why=f"it has {len(self.outputs)} tensors, one per microbatch",
            hint=f"Format the mean: f'{{loss.reduce_mean():{spec}}}'",
            kind="not_a_number",
        )
        return repr(self)

    def __float__(self) -> float:
        """Raise an error, since there is one tensor for each microbatch, not a single number.

        Raises:
            OptionError: Always; it advises `reduce_mean()`.
        """
        raise OptionError(
            "a StepOutput cannot be converted to a number",
            f"it has {len(self.outputs)} tensors, one per microbatch",
            "Call float(loss.reduce_mean())",
            kind="not_a_number",
        )

    def item(self) -> float:
        """Raise an error, since there is one tensor for each microbatch, not a single number.

        Raises:
            OptionError: Always; it advises `reduce_mean()`.
        """
        return float(self)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def gathered(results: Sequence[Any]) -> Any:
    """Combine the nested results of all microbatches into one result with the same containers.

    A tensor becomes a StepOutput, which has the tensors of all microbatches. None stays None. Any
    other value becomes a list of the values of all microbatches. If the containers differ between
    microbatches, the list of results is returned.

    Args:
        results: Results in the order of microbatches.
    """
    flat = [flatten(result) for result in results]
    form = flat[0][1]
    if any(other != form for _, other in flat):
        return list(results)
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return unflatten(form, [_column(list(column)) for column in columns])


def _column(leaves: list[Any]) -> Any:
    """Combine values from the same position in the results of all microbatches.

    Args:
        leaves: One value for each microbatch.

    Returns:
        A StepOutput if all are tensors; None if all are None; else the list of values.
    """
    if all(isinstance(leaf, Tensor) for leaf in leaves):
        return StepOutput(leaves)
    return None if all(leaf is None for leaf in leaves) else leaves
