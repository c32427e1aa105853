# SPDX-License-Identifier: Apache-2.0
"""Optimizer offload: optimizer state and master weights are in the host's memory.

Parameters and gradients stay on the device. In a step,

    1. gradients are copied to pinned memory of the host;
    2. host parameters take the places of the device's parameters in the optimizer's groups and
       state, so that the optimizer's `step` runs on the CPU;
    3. the new values are copied to the device's parameters.

A host parameter has the float32 master weight of a parameter in 16 bits as its data. Any other
parameter is copied to the host in each step, so that a script may change parameters between steps.
Optimizer state belongs to the device's parameters between steps, so checkpoints, schedulers and
parameter groups need no change.

Source: ZeRO-Offload (Ren et al., USENIX ATC 2021), without its delayed update: a step ends before
the next one begins, so its result is the same as on the device, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError

_ON_HOST: Final = "_smp_state_on_host"  # attribute of a parameter whose optimizer state is there
_CPU: Final = torch.device("cpu")
_acting: dict[nn.Parameter, nn.Parameter] = {}  # host parameters of the running step


def acting(parameter: nn.Parameter) -> nn.Parameter:
    """Return the host parameter that an optimizer updates in place of a parameter now.

    Outside of a step with optimizer offload, the result is the parameter itself.
    """
    return _acting.get(parameter, parameter)


def at_home(value: Any, parameter: Tensor) -> Any:
    """Return a tensor of a parameter's optimizer state on the device where it belongs.

    This is the CPU with optimizer offload, and otherwise the device of the parameter. Any other
    value is returned unchanged.

    Args:
        value: Piece of optimizer state.
        parameter: Parameter of this rank.
    """
    if not isinstance(value, Tensor):
        return value
    home = _CPU if getattr(parameter, _ON_HOST, False) else parameter.device
    return _rewrapped(local_part(value).to(home), value)


def empty_at_home(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an empty tensor of a parameter's shape and shards where its optimizer state belongs.

    Args:
        parameter: Parameter of this rank, which may be a DTensor.
        dtype: Dtype of the result.
    """
    home = _CPU if getattr(parameter, _ON_HOST, False) else parameter.device
    return _rewrapped(torch.empty_like(local_part(parameter), dtype=dtype, device=home), parameter)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor detached."""
    return tensor._local_tensor.detach() if isinstance(tensor, DTensor) else tensor.detach()


def _rewrapped(part: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard as a DTensor if `like` is one; the shard may be on the CPU."""
    if not isinstance(like, DTensor):
        return part
    return DTensor(part, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]


class HostUpdate:
    """Steps of optimizers on the CPU, for one rank's parameters on an accelerator.

    It keeps pinned buffers from step to step: for a parameter in 16 bits one of its own size, and
    for any other parameter one for its values and one for its gradient.

    Args:
        parameters: Parameters of this rank, whose optimizer state is kept on the host.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            setattr(parameter, _ON_HOST, True)
        self._values: dict[nn.Parameter, Tensor] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._written: Any = None  # event after the latest copies to the device

    @property
    def buffer_bytes(self) -> int:
        """Bytes of pinned memory."""
        buffers = (*self._values.values(), *self._gradients.values())
        return sum(each.nbytes for each in buffers)

    def gradients(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Copy gradients to the host, and wait for the copies.

        The results are in buffers that the next call for the same parameter writes again.

        Args:
            parameters: Parameters of this rank; those without a gradient are left out.
        """
        found = {
            parameter: self._fetched(parameter, parameter.grad, self._gradients)
            for parameter in parameters
            if parameter.grad is not None
        }
        _wait()
        return found

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        gradients: Mapping[nn.Parameter, Tensor],
        masters: Mapping[nn.Parameter, Tensor],
    ) -> tuple[Any, dict[nn.Parameter, Tensor]]:
        """Run an optimizer's step on the CPU, and copy new values to the device.

        Args:
            optimizer: PyTorch's optimizer, with parameters of this rank.
            gradients: Gradients on the host by parameter, in the dtype of the values to update.
            masters: Master weights on the host by parameter; parameters without one are copied to
                the host now.

        Returns:
            Result of the optimizer's step, and the new values on the host by parameter.

        Raises:
            OptionError: A group has the option "capturable", which needs state on the device.
        """
        _check_groups(optimizer)
        values = {
            parameter: masters[parameter]
            if parameter in masters
            else self._fetched(parameter, parameter, self._values)
            for parameter in gradients
        }
        _wait()
        with self.acting(values, gradients) as found, _in_groups(optimizer, found):
            result = optimizer.step()
        new = {parameter: each.data for parameter, each in found.items()}
        self._write(new)
        return result, new

    @contextmanager
    def acting(
        self, values: Mapping[nn.Parameter, Tensor], gradients: Mapping[nn.Parameter, Tensor]
    ) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
        """Make host parameters that stand for the device's parameters within the block.

        Args:
            values: Data of the host parameters, by the device's parameter.
            gradients: Their gradients.

        Yields:
            Host parameters by the device's parameter.
        """
        found = {}
        for parameter, value in values.items():
            found[parameter] = nn.Parameter(value, requires_grad=True)
            found[parameter].grad = gradients[parameter]
        _acting.update(found)
        try:
            yield found
        finally:
            for parameter in found:
                _acting.pop(parameter, None)

    def _fetched(
        self, parameter: nn.Parameter, source: Tensor, buffers: dict[nn.Parameter, Tensor]
    ) -> Tensor:
        """Start to copy a parameter's values or gradient to the host, into a pinned buffer."""
        if source.layout is not torch.strided:
            return source.detach().cpu()
        part = local_part(source)
        buffer = self._buffer(parameter, part, buffers)
        buffer.copy_(part, non_blocking=True)
        return _rewrapped(buffer, source)

    def _buffer(
        self, parameter: nn.Parameter, part: Tensor, buffers: dict[nn.Parameter, Tensor]
    ) -> Tensor:
        """Return a parameter's pinned buffer, with the shape, strides and dtype of `part`."""
        found = buffers.get(parameter)
        if found is None or (found.shape, found.stride(), found.dtype) != (
            part.shape,
            part.stride(),
            part.dtype,
        ):
            found = torch.empty_like(part, device=_CPU, pin_memory=True)
            buffers[parameter] = found
        if self._written is not None:
            self._written.synchronize()
            self._written = None
        return found

    @torch.no_grad()
    def _write(self, values: Mapping[nn.Parameter, Tensor]) -> None:
        """Start to copy values from the host to the parameters, rounded to the dtype of each."""
        for parameter, value in values.items():
            target, source = local_part(parameter), local_part(value)
            # The gradient is used up, and its buffer has the size of the parameter.
            buffers = self._gradients if source.dtype is not target.dtype else self._values
            buffer = self._buffer(parameter, target, buffers)
            if buffer.data_ptr() != source.data_ptr():
                buffer.copy_(source)
            target.copy_(buffer, non_blocking=True)
        if values:
            self._written = torch.accelerator.current_stream().record_event()


def _wait() -> None:
    """Wait until copies that were started on the current stream are complete."""
    torch.accelerator.current_stream().synchronize()


@contextmanager
def _in_groups(
    optimizer: torch.optim.Optimizer, found: Mapping[nn.Parameter, nn.Parameter]
) -> Iterator[None]:
    """Put host parameters into an optimizer's groups and state within the block.

    Parameters without a gradient are left out of the groups, since no optimizer updates them.

    Args:
        optimizer: PyTorch's optimizer.
        found: Host parameters by the device's parameter.
    """
    kept = [list(group["params"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"][:] = [found[each] for each in group["params"] if each in found]
    for parameter, host in found.items():
        state = optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[host] = {key: at_home(each, host) for key, each in state.items()}
    try:
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, kept, strict=True):
            group["params"][:] = parameters
        for parameter, host in found.items():
            state = optimizer.state.pop(host, None)
            if state:
                optimizer.state[parameter] = state


def _check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise an OptionError if the optimizer has to run on the device.

    Args:
        optimizer: PyTorch's optimizer.
    """
    if any(group.get("capturable") for group in optimizer.param_groups):
        raise OptionError(
            f"{type(optimizer).__name__} has capturable=True with offload_optimizer=True",
            "a step that a CUDA graph captures runs on the device, and this one runs on the CPU",
            "Leave out capturable=True, or leave out offload_optimizer",
            about=("optimizer", "capturable"),
            kind="conflict",
        )
