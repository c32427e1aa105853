# SPDX-License-Identifier: Apache-2.0
"""Lets a script that names CUDA devices use others: the test device, or a GPU that ranks share.

python device_mapping.py script.py --option ...     # runs a script on the test device
"""

import runpy
import sys
from collections.abc import Callable
from typing import Any

import test_device
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions of torch.cuda that scripts call, and that torch knows of every device
_REDIRECTED = (
    "current_device",
    "current_stream",
    "device_count",
    "empty_cache",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "set_device",
    "synchronize",
)

_libraries: list[torch.library.Library] = []


class DeviceMapping(TorchFunctionMode):
    """Replaces CUDA devices among the arguments of all of torch's functions, while it is active.

    mapped: returns the device for the number of a CUDA device; None stands for the current one.
    """

    def __init__(self, mapped: Callable[[int | None], torch.device]) -> None:
        super().__init__()
        self._mapped = mapped

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function with the other devices."""
        if function is torch.device:
            return self._here(torch.device(*args, **(kwargs or {})))
        kwargs = {name: self._here(value) for name, value in (kwargs or {}).items()}
        if function is Tensor.cuda:
            tensor, *rest = args
            number = rest[0] if rest else kwargs.pop("device", None)
            return tensor.to(self._device(number), **kwargs)
        if function is Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], self._mapped(args[1]), *args[2:])
        return function(*map(self._here, args), **kwargs)

    def _device(self, given: Any) -> torch.device:
        return self._mapped(given) if given is None or type(given) is int else self._here(given)

    def _here(self, value: Any) -> Any:
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            value = torch.device(value)
        is_cuda = isinstance(value, torch.device) and value.type == "cuda"
        return self._mapped(value.index) if is_cuda else value


def _convolution(data, weight, bias, *options):
    """Convolve on the CPU: torch has a kernel for each device but none that falls back."""
    on_host = [None if each is None else each.cpu() for each in (data, weight, bias)]
    return torch.ops.aten.convolution(*on_host, *options).to(data.device)


def _convolution_backward(gradient, data, weight, *options):
    """Compute the gradients of a convolution on the CPU."""
    transposed, groups = options[3], options[5]
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
    on_host = [each.cpu() for each in (gradient, data, weight)]
    found = torch.ops.aten.convolution_backward(*on_host, bias_sizes, *options)
    return tuple(None if each is None else each.to(data.device) for each in found)


def _add_convolutions() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("convolution_overrideable", _convolution, "PrivateUse1")
    library.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    _libraries.append(library)  # what it has registered ends with it


def use_test_device() -> None:
    """Let CUDA devices be those of the test device in all that this process does from now on."""
    test_device.load()
    _add_convolutions()
    for name in _REDIRECTED:
        setattr(torch.cuda, name, getattr(torch.testdev, name))
    import smdist.dataparallel.torch.torch_smddp

    for name in ("smdist", smdist.dataparallel.torch.torch_smddp.NAME):
        torch.distributed.Backend.backend_capability[name].append(test_device.NAME)

    def mapped(number: int | None) -> torch.device:
        return torch.device(test_device.NAME, *([] if number is None else [number]))

    DeviceMapping(mapped).__enter__()


if __name__ == "__main__":
    use_test_device()
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
