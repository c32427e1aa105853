# SPDX-License-Identifier: Apache-2.0
"""Gradients of matrix products and convolutions, computed later than autograd would.

When an autograd node runs, it computes the gradients of the requested arguments, and then frees the
tensors that it saved. This module computes further gradients later, with the same tensors, kernels
and memory layouts as torch.

Only matrix products and convolutions are supported, since gradients of their weights take most of
the time. Autograd itself computes all gradients of a node if a saved tensor has a hook that may be
called only once, such as that of an activation checkpoint. The hooks of activation offload may be
called again, so a tensor that is on the host stays there until its gradients are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from smdist.modelparallel.torch.executor.offload import RepeatableUnpack

Gradients = Callable[[], dict[int, Tensor]]  # returns gradients by number of the argument
_Factor = Callable[[], Tensor]  # returns a tensor that a node has saved


class _Product(NamedTuple):
    """Rule for the gradients of one kind of autograd node, such as AddmmBackward0.

    Attributes:
        factors: Names of the saved tensors from which an argument's gradient is computed, by index
            of the argument.
        rule: Function that gets a node, the gradient of the node's result, and indices of
            arguments. It returns a function that computes the gradients of these arguments.
    """

    factors: Mapping[int, tuple[str, ...]]
    rule: Callable[[Any, Tensor, frozenset[int]], Gradients]


def can_wait(node: Node, argument: int) -> bool:
    """Return True if an argument's gradient can be computed after autograd has run the node.

    Args:
        node: Autograd node.
        argument: Index of the argument.
    """
    product = _PRODUCTS.get(node.name())
    if product is None or argument not in product.factors:
        return False
    return all(_is_plain(node, name) for name in product.factors[argument])


def later(node: Node, gradient: Tensor, arguments: Iterable[int]) -> Gradients:
    """Return a function that computes the gradients of some arguments of a node at any later time.

    The function returns the gradients by number of the argument. It keeps the tensors that it
    needs, but no autograd graph.

    Args:
        node: Node that autograd has not run yet, so that its saved tensors still exist.
        gradient: Gradient of the node's result.
        arguments: Numbers of the arguments.
    """
    rule = _PRODUCTS[node.name()].rule
    return rule(node, gradient.detach(), frozenset(arguments))


def _is_plain(node: Node, name: str) -> bool:
    """Return True if a tensor saved by a node can be read more than once.

    Args:
        node: Autograd node.
        name: Name of the saved tensor, such as "mat2".
    """
    hook = getattr(node, f"_raw_saved_{name}").unpack_hook
    return hook is None or isinstance(hook, RepeatableUnpack)


def _saved(node: Any, name: str) -> _Factor:
    """Return a function that returns a tensor which an autograd node saved, without its graph.

    The function can be called after the node has run.

    Args:
        node: Autograd node.
        name: Name of the saved tensor, such as "mat2".
    """
    raw = getattr(node, f"_raw_saved_{name}")
    if isinstance(raw.unpack_hook, RepeatableUnpack):
        return partial(raw.unpack_hook, raw.data)
    factor = getattr(node, f"_saved_{name}")
    assert isinstance(factor, Tensor)
    tensor = factor.detach()
    return lambda: tensor


def _mm(node: Any, gradient: Tensor, arguments: frozenset[int]) -> Gradients:
    """Return a function that computes the gradients of the arguments of `self @ mat2`.

    Args:
        node: Autograd node of the product.
        gradient: Gradient of the product.
        arguments: Numbers of the arguments whose gradients to compute: 0 is self, 1 is mat2.
    """
    return _matrices(node, gradient, arguments, names=("self", "mat2"), first=0)


def _addmm(node: Any, gradient: Tensor, arguments: frozenset[int]) -> Gradients:
    """Return a function for the gradients of the arguments of `beta * self + alpha * mat1 @ mat2`.

    Args:
        node: Autograd node of this expression.
        gradient: Gradient of its result.
        arguments: Numbers of the arguments whose gradients to compute: 0 is self, 1 mat1, 2 mat2.
    """
    products = _matrices(node, gradient, arguments - {0}, names=("mat1", "mat2"), first=1)
    return _scaled(products, gradient, arguments, (node._saved_alpha, node._saved_beta))


def _matrices(
    node: Any, gradient: Tensor, arguments: frozenset[int], *, names: tuple[str, str], first: int
) -> Gradients:
    """Return a function that computes the gradients of the two factors of a matrix product.

    Args:
        node: Autograd node of the product.
        gradient: Gradient of the product.
        arguments: Numbers of the arguments whose gradients to compute.
        names: Names under which the node saved the left and the right factor.
        first: Number of the argument that is the left factor; the right factor is the next one.
    """
    rules: dict[int, Callable[[], Tensor]] = {}
    left, right = names
    if first in arguments:
        other = _saved(node, right)
        is_transposed = _is_transposed(node, left)
        rules[first] = partial(_left_gradient, gradient, other, is_transposed=is_transposed)
    if first + 1 in arguments:
        other = _saved(node, left)
        is_transposed = _is_transposed(node, right)
        rules[first + 1] = partial(_right_gradient, other, gradient, is_transposed=is_transposed)
    return partial(_each, rules)


def _is_transposed(node: Any, name: str) -> bool:
    """Return True if a saved matrix is stored by columns, as `weight.t()` is.

    Then torch stores the gradient of the matrix by columns, too.

    Args:
        node: Autograd node that saved the matrix.
        name: Name of the saved matrix, such as "mat2".
    """
    rows, _ = getattr(node, f"_saved_{name}_sym_sizes")
    down, across = getattr(node, f"_saved_{name}_sym_strides")
    return bool(down == 1 and across == rows)


def _left_gradient(gradient: Tensor, right: _Factor, *, is_transposed: bool) -> Tensor:
    """Return the gradient of the left factor of a matrix product.

    Args:
        gradient: Gradient of the product.
        right: Function that returns the right factor.
        is_transposed: True if the left factor is stored by columns. Then the result is stored by
            columns, too.
    """
    if is_transposed:
        return right().conj().mm(gradient.t()).t()
    return gradient.mm(right().t().conj())


def _right_gradient(left: _Factor, gradient: Tensor, *, is_transposed: bool) -> Tensor:
    """Return the gradient of the right factor of a matrix product.

    Args:
        left: Function that returns the left factor.
        gradient: Gradient of the product.
        is_transposed: True if the right factor is stored by columns. Then the result is stored by
            columns, too.
    """
    if is_transposed:
        return gradient.t().mm(left().conj()).t()
    return left().t().conj().mm(gradient)


def _bmm(node: Any, gradient: Tensor, arguments: frozenset[int]) -> Gradients:
    """Return a function for the gradients of the arguments of the batched product `self @ mat2`.

    Args:
        node: Autograd node of the product.
        gradient: Gradient of the product.
        arguments: Numbers of the arguments whose gradients to compute: 0 is self, 1 is mat2.
    """
    return _batches(node, gradient, arguments, names=("self", "mat2"), first=0)


def _baddbmm(node: Any, gradient: Tensor, arguments: frozenset[int]) -> Gradients:
    """Return a function that computes the gradients of the arguments of a baddbmm node.

    The node's result is `beta * self + alpha * batch1 @ batch2`.

    Args:
        node: Autograd node of this expression.
        gradient: Gradient of its result.
        arguments: Numbers of the arguments whose gradients to compute: 0 is self, 1 batch1,
            2 batch2.
    """
    products = _batches(node, gradient, arguments - {0}, names=("batch1", "batch2"), first=1)
    return _scaled(products, gradient, arguments, (node._saved_alpha, node._saved_beta))


def _batches(
    node: Any, gradient: Tensor, arguments: frozenset[int], *, names: tuple[str, str], first: int
) -> Gradients:
    """Return a function that computes the gradients of the two factors of a batched product.

    Args:
        node: Autograd node of the product.
        gradient: Gradient of the product.
        arguments: Numbers of the arguments whose gradients to compute.
        names: Names under which the node saved the left and the right factor.
        first: Number of the argument that is the left factor; the right factor is the next one.
    """
    rules: dict[int, Callable[[], Tensor]] = {}
    if first in arguments:
        rules[first] = partial(_batches_left, gradient, _saved(node, names[1]))
    if first + 1 in arguments:
        rules[first + 1] = partial(_batches_right, _saved(node, names[0]), gradient)
    return partial(_each, rules)


def _batches_left(gradient: Tensor, right: _Factor) -> Tensor:
    """Return the gradient of the left factor of a batched product, from the product's gradient."""
    return gradient.bmm(right().transpose(1, 2).conj())


def _batches_right(left: _Factor, gradient: Tensor) -> Tensor:
    """Return the gradient of the right factor of a batched product, from the product's gradient."""
    return left().transpose(1, 2).conj().bmm(gradient)


def _each(rules: Mapping[int, Callable[[], Tensor]]) -> dict[int, Tensor]:
    """Call all functions of a dict; return their results, the gradients, under the same keys.

    Args:
        rules: Function that computes a gradient, by number of the argument.
    """
    return {argument: rule() for argument, rule in rules.items()}


def _scaled(
    products: Gradients, gradient: Tensor, arguments: frozenset[int], scales: tuple[Any, Any]
) -> Gradients:
    """Return a function that computes gradients for `beta * added + alpha * product`.

    The function returns the gradients of `added` and of the product's two factors, by number of the
    argument.

    Args:
        products: Function that computes the gradients of the product's factors, not yet multiplied
            by alpha.
        gradient: Gradient of the whole expression.
        arguments: Numbers of the arguments whose gradients to compute; argument 0 is `added`.
        scales: Alpha and beta.
    """
    alpha, beta = scales
    added = gradient if 0 in arguments else None

    def compute() -> dict[int, Tensor]:
        found = {at: _times(each, alpha) for at, each in products().items()}
        return found if added is None else {0: _times(added, beta), **found}

    return compute


def _times(tensor: Tensor, factor: Any) -> Tensor:
    """Return a tensor times a number; if the number is 1, return the tensor itself."""
    return tensor if factor == 1 else tensor * factor


def _convolution(node: Any, gradient: Tensor, arguments: frozenset[int]) -> Gradients:
    """Return a function that computes the gradients of a convolution's arguments.

    The function calls torch's kernel once for all gradients.

    Args:
        node: Autograd node of the convolution.
        gradient: Gradient of its result.
        arguments: Numbers of the arguments whose gradients to compute: 0 is the input, 1 the
            weight, 2 the bias.
    """
    return partial(
        _convolved,
        (gradient, _saved(node, "input"), _saved(node, "weight")),
        tuple(getattr(node, f"_saved_{name}") for name in _CONVOLUTION),
        arguments,
    )


_CONVOLUTION: Final = (
    "bias_sym_sizes_opt", "stride", "padding", "dilation", "transposed", "output_padding", "groups",
)  # fmt: skip


def _convolved(
    tensors: tuple[Tensor, _Factor, _Factor], settings: tuple[Any, ...], arguments: frozenset[int]
) -> dict[int, Tensor]:
    """Run torch's kernel for the gradients of a convolution's arguments.

    Args:
        tensors: Gradient of the convolution's result, and functions that return its input and its
            weight.
        settings: Settings of the convolution, in the order of the kernel's arguments.
        arguments: Numbers of the arguments whose gradients to compute: 0 is the input, 1 the
            weight, 2 the bias.

    Returns:
        Gradients by number of the argument.
    """
    wanted = [argument in arguments for argument in range(3)]
    gradient, entry, weight = tensors
    found = torch.ops.aten.convolution_backward(gradient, entry(), weight(), *settings, wanted)
    return dict(_present(found))


def _present(tensors: Iterable[Tensor | None]) -> Iterator[tuple[int, Tensor]]:
    """Return the tensors that are not None, each with its index in the sequence."""
    return ((at, each) for at, each in enumerate(tensors) if each is not None)


_PRODUCTS: Final = {
    "MmBackward0": _Product({0: ("mat2",), 1: ("self",)}, _mm),
    "AddmmBackward0": _Product({0: ("mat1",), 1: ("mat2",), 2: ("mat1",)}, _addmm),
    "BmmBackward0": _Product({0: ("mat2",), 1: ("self",)}, _bmm),
    "BaddbmmBackward0": _Product({0: ("batch1",), 1: ("batch2",), 2: ("batch1",)}, _baddbmm),
    "ConvolutionBackward0": _Product(
        {1: ("input", "weight"), 2: ("input", "weight")}, _convolution
    ),
}
