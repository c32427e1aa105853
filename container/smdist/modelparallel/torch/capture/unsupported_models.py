# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be captured, whatever their forward functions do."""

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
    """Raise all errors that are known about a model before it runs.

    Raises:
        CaptureError: The model is wrapped for data parallelism; or is compiled or scripted as a
            whole; or has hooks on itself; or has trained tensors that are no parameters; or has
            two parameters in the same memory.
    """
    raise_all(
        [*_wrapped(model), *_whole(model), *_hooked(model), *_loose(model), *_overlapping(model)]
    )


def _wrapped(model: nn.Module) -> Iterator[CaptureError]:
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            yield CaptureError(
                f"{name or 'the model'!r} is a {type(module).__name__}",
                "data parallelism goes around the stages of a model, not into them",
                "Pass the model that it wraps",
            )


def _whole(model: nn.Module) -> Iterator[CaptureError]:
    kinds = {"OptimizedModule": "compiled", "ScriptModule": "scripted"}
    found = {kinds[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in kinds}
    if model._compiled_call_impl is not None:
        found.add("compiled")
    for kind in found:
        yield CaptureError(
            f"the model is {kind} as a whole",
            "there is nothing to see between its modules",
            "Pass the plain model; its parts may be compiled",
        )


def _hooked(model: nn.Module) -> Iterator[CaptureError]:
    if has_hooks(model):
        yield CaptureError(
            f"the model, a {type(model).__name__}, has forward or backward hooks on itself",
            "no stage is the whole model, so nothing would call them",
            "Put the hooks on a part of it, or remove them",
        )


def _loose(model: nn.Module) -> Iterator[CaptureError]:
    for prefix, module in model.named_modules():
        for key, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                yield CaptureError(
                    f"{f'{prefix}.{key}'.lstrip('.')!r} wants gradients",
                    "it is no parameter, so no stage would add up or pass on its gradient",
                    "Make it an nn.Parameter, or detach it",
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
                "on two stages, an update of one would not reach the other",
                "Tie them by assigning one parameter to both modules",
            )
