# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of a model that cannot be recorded: does its forward pass fail anyway?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.capture_errors import CaptureError
from smdist.modelparallel.torch.capture.module_snapshot import snapshots, uncompiled, untouched
from smdist.modelparallel.torch.capture.program_writer import first_line
from smdist.modelparallel.torch.capture.source_lines import line_of_user
from smdist.modelparallel.torch.program.pytree import flatten, map_leaves, paths


def failure_of(model: nn.Module, arguments: tuple[Any, Any]) -> CaptureError | None:
    """Run a model without recording, and return the error that it raises on these arguments.

    If the model is on the meta device, it runs there. An operation that needs values then fails,
    which does not count as an error of the model.

    Args:
        model: The model, which is unchanged afterwards.
        arguments: Positional arguments and keyword arguments.

    Returns:
        The error for the user; None if the model raises no error. The result is also None if the
        inputs are on the meta device and the model is not: then the model does not run.
    """
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    tensors = [leaf for leaf in flatten(arguments)[0] if isinstance(leaf, Tensor)]
    if not on_meta and any(tensor.is_meta for tensor in tensors):
        return None
    args, kwargs = map_leaves(lambda leaf: _copied(leaf, on_meta=on_meta), arguments)
    with _restored(model), untouched(), uncompiled():
        try:
            model(*args, **kwargs)
        except Exception as error:
            if on_meta and _is_of_meta(error):
                return None
            return _failed(model, arguments, error)
    return None


def _failed(model: nn.Module, arguments: tuple[Any, Any], error: Exception) -> CaptureError:
    line = line_of_user(error)
    return CaptureError(
        f"{type(model).__name__} itself fails on this example, {_shapes(arguments)}"
        + (f", at {line}" if line else ""),
        f"{type(error).__name__}: {first_line(error)}",
        f"Run {'model(**batch)' if arguments[1] else 'model(batch)'} by itself, and correct the "
        "model or the example",
        kind="failed",
        line=line,
    )


def _shapes(arguments: tuple[Any, Any]) -> str:
    leaves, form = flatten(arguments)
    named = zip(paths(form), leaves, strict=True)
    shapes = [
        f"{path.partition('.')[2]}: {tuple(leaf.shape)}"
        for path, leaf in named
        if isinstance(leaf, Tensor)
    ]
    return f"({', '.join(shapes)})"


def _is_of_meta(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _copied(leaf: Any, *, on_meta: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    copied = leaf.detach().to("meta") if on_meta else leaf.detach().clone()
    return copied.requires_grad_(leaf.requires_grad)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    saved = snapshots(model.modules())
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for each in saved:
            each.restore()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
