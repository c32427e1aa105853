# SPDX-License-Identifier: Apache-2.0
"""What torch knows as `torch.testdev`: the functions that torch.cuda has and that training calls.

DDP, FSDP2, autocast, torch.random and checkpointing look up a device's module by its name and
call these.
"""

import contextlib

import torch

NAME = "testdev"

Stream = torch.Stream
Event = torch.Event

_ops = torch.ops.testdev


def _index(device=None) -> int:
    """The number of a device that is given as a number, a name, a torch.device or None."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    device = torch.device(device)
    if device.type != NAME:
        raise ValueError(f"{device} is not a {NAME}")
    return current_device() if device.index is None else device.index


def is_available() -> bool:
    """Whether the device can be used: always, once it is loaded."""
    return True


def is_initialized() -> bool:
    """Whether this process, or the one it was forked from, has used the device."""
    return _ops.is_initialized()


def init() -> None:
    """Start the device, which its first use does too."""
    _ops.initialize()


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    return _ops.is_in_bad_fork()


def device_count() -> int:
    """The number of devices. torch.accelerator asks here."""
    return _ops.device_count()


def current_device() -> int:
    """The number of this thread's current device."""
    return torch.accelerator.current_device_index()


def set_device(device) -> None:
    """Make a device this thread's current one."""
    torch.accelerator.set_device_index(_index(device))


@contextlib.contextmanager
def device(device):
    """Make a device the current one in a `with` block."""
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def current_stream(device=None) -> torch.Stream:
    """The stream of a device that this thread's operators run on."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device=None) -> torch.Stream:
    """The stream that is current where no other was chosen."""
    return torch.Stream(
        stream_id=0,
        device_index=_index(device),
        device_type=int(torch._C._autograd.DeviceType.PrivateUse1),
    )


def set_stream(stream: torch.Stream) -> None:
    """Make a stream its device's current one, and its device the current device."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None):
    """Make a stream the current one in a `with` block. None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def synchronize(device=None) -> None:
    """Wait until all streams of a device have run what was queued."""
    torch.accelerator.synchronize(_index(device))


def default_generator(device=None) -> torch.Generator:
    """The generator that random operators use where none is passed."""
    return _ops.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Set the seed of the current device's generator."""
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Set the seed of all devices' generators."""
    for index in range(device_count()):
        default_generator(index).manual_seed(int(seed))


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generator().initial_seed()


def get_rng_state(device=None) -> torch.Tensor:
    """The state of a device's generator, a CPU tensor."""
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device=None) -> None:
    """Set the state of a device's generator."""
    default_generator(device).set_state(new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Whether kernels take bfloat16, as the CPU's do."""
    return True


def empty_cache() -> None:
    """Give cached blocks of memory back, after all streams have run what was queued."""
    torch.accelerator.empty_cache()


def memory_stats(device=None) -> dict[str, int]:
    """Numbers of blocks and bytes, by the names that torch.cuda.memory_stats has."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device=None) -> int:
    """Bytes that tensors have."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device=None) -> int:
    """The most bytes that tensors had at once."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device=None) -> int:
    """Bytes that tensors have or that are cached."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device=None) -> int:
    """The most bytes that were in use or cached at once."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device=None) -> None:
    """Count the most bytes anew."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device=None) -> tuple[int, int]:
    """Free and total bytes."""
    return torch.accelerator.get_memory_info(_index(device))
