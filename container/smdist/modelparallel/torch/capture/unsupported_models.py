# SPDX-License-Identifier: Apache-2.0
"""Checks for models that can never be recorded, made before the forward pass runs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.torch.capture.capture_errors import CaptureError
from smdist.modelparallel.torch.capture.fake_model import memory
from smdist.modelparallel.torch.capture.signature import has_hooks

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse(model: nn.Module) -> None:
    """Check that a model can be recorded, as far as this is known before it runs.

    Raises:
        CaptureError: The model has a fault; the error lists all faults. Possible faults are: a
            module is wrapped for data parallelism; the whole model is compiled or scripted; the
            model itself has hooks; a tensor that requires a gradient is no parameter; two
            parameters share memory.
    """
    raise_all(
        [*_wrapped(model), *_whole(model), *_hooked(model), *_loose(model), *_overlapping(model)]
    )


def _wrapped(model: nn.Module) -> Iterator[CaptureError]:
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            yield CaptureError(
                f"{name or 'the model'!r} is a {type(module).__name__}",
                "data parallelism is added to each stage after the model is split",
                "Pass the model that it wraps",
                about=name or (),
                kind="wrapped",
            )


def _whole(model: nn.Module) -> Iterator[CaptureError]:
    kinds = {"OptimizedModule": "compiled", "ScriptModule": "scripted"}
    found = {kinds[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in kinds}
    if model._compiled_call_impl is not None:
        found.add("compiled")
    for kind in found:
        yield CaptureError(
            f"the model is {kind} as a whole",
            "the calls of the modules inside it cannot be recorded",
            "Pass the plain model; modules inside it may be compiled",
            kind=kind,
        )


def _hooked(model: nn.Module) -> Iterator[CaptureError]:
    if has_hooks(model):
        yield CaptureError(
            f"the model, a {type(model).__name__}, has forward or backward hooks on itself",
            "no stage calls the whole model, so the hooks would never run",
            "Register the hooks on modules inside it, or remove them",
            kind="hooked",
        )


def _loose(model: nn.Module) -> Iterator[CaptureError]:
    for prefix, module in model.named_modules():
        for key, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                name = f"{prefix}.{key}".lstrip(".")
                yield CaptureError(
                    f"{name!r} requires a gradient and is no parameter",
                    "stages sum and send the gradients of parameters only",
                    "Make it an nn.Parameter, or detach it",
                    about=name,
                    kind="not_a_parameter",
                )


def _overlapping(model: nn.Module) -> Iterator[CaptureError]:
    seen: dict[tuple[int, int], tuple[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        is_lazy = isinstance(parameter, nn.UninitializedParameter)
        if is_lazy or parameter.layout is not torch.strided or not parameter.numel():
            continue
        place = memory(parameter), int(parameter.storage_offset())
        other, first = seen.setdefault(place, (name, parameter))
        if first is not parameter:
            yield CaptureError(
                f"{name!r} and {other!r} are two parameters in the same memory",
                "if they were on two stages, an update of one would not change the other",
                "Tie them by assigning one parameter to both modules",
                about=(name, other),
                kind="shared_memory",
            )
