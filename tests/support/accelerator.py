# SPDX-License-Identifier: Apache-2.0
"""The device on whose tensors tests run: the test device, or a GPU.

SMDIST_TEST_DEVICE=cuda chooses a GPU, as `make gpu` does. Tests name the device by NAME, and call
the functions that both devices have. What a GPU cannot do is marked: on_the_test_device().
"""

import os

import gpu_device
import pytest
import test_device
import torch
import torch.distributed as dist

NAME = os.environ.get("SMDIST_TEST_DEVICE", test_device.NAME)
IS_GPU = NAME != test_device.NAME
ROUNDING = 1e-5 if IS_GPU else 1e-6  # a GPU adds in an order of its own
TRAINED = 1e-3 if IS_GPU else 1e-5  # the same after some steps of AdamW
NEVER = test_device.StaleUses(device=0, pinned=0)

_device = gpu_device if IS_GPU else test_device

set_seed = _device.set_seed
sleep = _device.sleep
held_stream = _device.held_stream
set_memory_limit = _device.set_memory_limit
take_stale_uses = _device.take_stale_uses

# Names that torch.distributed has from 2.13 on, and those that they had before
_RENAMED = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def load() -> None:
    """Start the device in this process, and let tests call an older torch by today's names."""
    _device.load()
    for name, before in _RENAMED.items():
        if not hasattr(dist, name):
            setattr(dist, name, getattr(dist, before))


def second_device() -> str:
    """Another device of this process, or the first again where there is one alone."""
    return f"{NAME}:{min(1, torch.accelerator.device_count() - 1)}"


def clear_errors() -> None:
    """Let the streams of the test device go on after an error. A GPU's stay broken."""
    if not IS_GPU:
        test_device.clear_errors()


def shut_down() -> None:
    """End the threads of the test device, before its process ends without atexit's functions."""
    if not IS_GPU:
        torch.ops.testdev.shut_down()


def on_the_test_device(reason: str) -> pytest.MarkDecorator:
    """Skip a test on a GPU; the reason says what a GPU cannot do."""
    return pytest.mark.skipif(IS_GPU, reason=reason)
