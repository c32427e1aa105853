# SPDX-License-Identifier: Apache-2.0
"""Accelerator of this process, such as a GPU: torch's module for it, and the current device.

One process uses one device. `torch.accelerator` knows which type of device this build of torch and
this machine have, so nothing here names CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


@cache
def accelerator_module() -> Any:
    """Return torch's module for this machine's accelerator, such as `torch.cuda`; None without one.

    The module has functions for random generators, which `torch.accelerator` lacks.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else torch.get_device_module(found)


def random_device_type() -> str:
    """Return the type of device whose generators `torch.random.fork_rng` restores."""
    here = current_device()
    return "cuda" if here is None else here.type  # "cuda" has no generators without GPUs


def current_device() -> torch.device | None:
    """Return the current device of this process, such as cuda:1; None without an accelerator."""
    if accelerator_module() is None:
        return None
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, torch.accelerator.current_device_index())


def is_accelerator(device: torch.device) -> bool:
    """Return True for a device with streams, such as a GPU; False for the CPU and meta devices."""
    return device.type not in ("cpu", "meta")


def accelerator_of(tensors: Iterable[Tensor]) -> torch.device | None:
    """Return the device of the first tensor that is on an accelerator; None if there is none."""
    return next((each.device for each in tensors if is_accelerator(each.device)), None)


def is_off_accelerator(model: nn.Module) -> bool:
    """Return True if no parameter and no buffer of a model is on an accelerator."""
    return accelerator_of([*model.parameters(), *model.buffers()]) is None


def name_of(device: torch.device) -> str:
    """Return the name of a device for reports, such as "NVIDIA A100", or else its type."""
    module: Any = torch.get_device_module(device) if is_accelerator(device) else None
    return module.get_device_name(device) if hasattr(module, "get_device_name") else device.type


def empty_cache() -> None:
    """Give the accelerator's memory that is cached, but not in use, back to other processes."""
    if accelerator_module() is not None:
        torch.accelerator.empty_cache()
