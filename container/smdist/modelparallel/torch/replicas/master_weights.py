# SPDX-License-Identifier: Apache-2.0
"""Master weights: float32 values of parameters with which a model computes in 16 bits.

An update is often too small for 16 bits: 1 + 0.0001 is 1 in float16. So the optimizer updates
float32 values, and each parameter is rounded from them afterwards.

While the optimizer runs, each parameter's data are its master weight, and its gradient is in
float32, too. The parameter objects stay the same. So the optimizer's groups and its state, learning
rate schedulers, and names in checkpoints need no change.

    take_gradients    16-bit gradients, scaled with the loss  ->  float32 gradients, unscaled
    in_place          parameters and gradients are in float32 within the block
    round             parameters are rounded from the master weights

Parameters that are sharded by FSDP2 are in float32 themselves, so they need no second copy. Their
gradients are unscaled in the same way.

With optimizer offload, master weights are in the host's memory. Gradients are copied there in 16
bits, and converted on the CPU (`host_update`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdist.modelparallel.torch.accelerator import current_device
from smdist.modelparallel.torch.replicas.gradient_buckets import numbers
from smdist.modelparallel.torch.replicas.host_update import HostUpdate


class MasterWeights:
    """Master weights of the parameters of one rank, and the gradients for their next update.

    Args:
        parameters: Parameters of this rank. Those that are trained get master weights now, others
            when they are trained later.
        dtype: Dtype of the parameters, torch.float16 or torch.bfloat16.
        scaled: True if the loss is multiplied by a scale, so that gradients are, too.
        host: Object that runs steps on the CPU, so that master weights are in the host's memory;
            None to keep them on the device.

    Attributes:
        dtype: Dtype of parameters that have master weights.
        scaled: True if the loss is multiplied by a scale.
        is_in_place: True while parameters have float32 data, in a block of `in_place`.
        host: The argument of the same name.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        dtype: torch.dtype,
        *,
        scaled: bool,
        host: HostUpdate | None = None,
    ) -> None:
        self.dtype, self.scaled, self.is_in_place, self.host = dtype, scaled, False, host
        self._masters: dict[nn.Parameter, Tensor] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                self._add(parameter)

    def _add(self, parameter: nn.Parameter) -> None:
        """Make a parameter's master weight, unless it has one or is not in 16 bits."""
        if parameter not in self._masters and parameter.dtype is self.dtype:
            value = parameter.detach()
            self._masters[parameter] = (value if self.host is None else value.cpu()).float()

    def of(self, parameter: Tensor | None) -> Tensor | None:
        """Return the master weight of a parameter; None if it has none, or for None."""
        return self._masters.get(parameter) if isinstance(parameter, nn.Parameter) else None

    def by_name(
        self, modules: Iterable[nn.Module], prefix: str = ""
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the names of parameters in some modules, with their master weights.

        Parameters without master weights are left out. A parameter with several names is yielded
        once for each name.

        Args:
            modules: Modules of this rank.
            prefix: Text before each name.
        """
        for module in modules:
            for name, parameter in module.named_parameters(prefix, remove_duplicate=False):
                if parameter in self._masters:
                    yield name, self._masters[parameter]

    def load(self, parameter: Tensor, value: Tensor) -> bool:
        """Set a parameter and its master weight to a value, which may have any dtype.

        Args:
            parameter: Parameter of this rank.
            value: New value with the parameter's shape.

        Returns:
            False if the parameter has no master weight; it is then unchanged.
        """
        master = self.of(parameter)
        if master is None:
            return False
        with torch.no_grad():
            master.copy_(value)
            parameter.copy_(master)
        return True

    def follow(self, host: HostUpdate | None) -> None:
        """Move each master weight to the device of its parameter, or to the host.

        Args:
            host: Object that runs steps on the CPU; None if they run where the parameters are.
        """
        self.host = host
        self._masters = {
            p: master.to(p.device if host is None else "cpu") for p, master in self._masters.items()
        }

    def take_gradients(self, parameters: Iterable[nn.Parameter], scale: float) -> bool:
        """Copy gradients to float32, and divide them by the loss scale.

        Args:
            parameters: Parameters of an optimizer on this rank.
            scale: Loss scale that the gradients contain.

        Returns:
            True if a gradient of this rank is infinite or NaN.
        """
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        held = list(parameters)
        self.drop_gradients(held)
        with torch.no_grad():
            for parameter, source in self._sources(held).items():
                self._add(parameter)
                is_shared = source is parameter.grad
                gradient = source.to(_wide(source.dtype), copy=is_shared)
                self._gradients[parameter] = gradient
                dense = numbers(gradient)
                alike.setdefault((dense.device, dense.dtype), []).append(dense)
            is_infinite = [_unscale(found, scale) for found in alike.values()]
        return any(is_infinite)

    def _sources(self, parameters: list[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Return the gradients of parameters; with optimizer offload, copies on the host."""
        if self.host is not None:
            return self.host.gradients(parameters)
        return {each: each.grad for each in parameters if each.grad is not None}

    def drop_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Free the gradients that `take_gradients` has made for these parameters."""
        for parameter in parameters:
            self._gradients.pop(parameter, None)

    @contextmanager
    def in_place(self, parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """Give parameters their master weights and float32 gradients within the block.

        Afterwards, the parameters have their 16-bit data and gradients again; `round` updates them.
        With optimizer offload, host parameters have the gradients, and nothing to update.

        Args:
            parameters: Parameters of an optimizer on this rank.

        Yields:
            Parameters that have the gradients.
        """
        if self.host is not None:
            own = {each: self._gradients[each] for each in parameters if each in self._gradients}
            with self._placing(), self.host.acting(own, own) as found:
                yield list(found.values())
            return
        parameters = list(parameters)
        kept = [(parameter, parameter.data, parameter.grad) for parameter in parameters]
        with self._placing():
            try:
                for parameter, _, _ in kept:
                    _set(parameter, self._masters.get(parameter), self._gradients.get(parameter))
                yield parameters
            finally:
                for parameter, data, gradient in kept:
                    is_half = parameter in self._masters
                    if is_half:
                        self._masters[parameter] = parameter.data  # some optimizers replace it
                    _set(parameter, data if is_half else None, gradient)

    @contextmanager
    def _placing(self) -> Iterator[None]:
        self.is_in_place = True
        try:
            yield
        finally:
            self.is_in_place = False

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Run an optimizer's step on master weights and prepared gradients; round parameters.

        Args:
            optimizer: PyTorch's optimizer, with parameters of this rank.

        Returns:
            Result of the optimizer's step.
        """
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if self.host is None:
            with self.in_place(parameters):
                result = optimizer.step()
            self.round(parameters)
            return result
        own = {each: self._gradients[each] for each in parameters if each in self._gradients}
        with self._placing():
            result, new = self.host.step(optimizer, own, self._masters)
        self._masters |= {each: new[each] for each in new if each in self._masters}
        return result

    def round(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set parameters to their master weights, rounded to 16 bits.

        Args:
            parameters: Parameters of an optimizer on this rank.
        """
        with torch.no_grad():
            for parameter in parameters:
                if parameter in self._masters:
                    parameter.copy_(self._masters[parameter])


def _set(parameter: nn.Parameter, data: Tensor | None, gradient: Tensor | None) -> None:
    """Set a parameter's data, unless they are None, and its gradient, which may be None."""
    parameter.grad = None  # a gradient has to have the dtype of the data
    if data is not None:
        parameter.data = data
    parameter.grad = gradient


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for a dtype of 16 bits, and any other dtype itself."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def _unscale(gradients: list[Tensor], scale: float) -> bool:
    """Divide gradients by the loss scale, in place.

    Args:
        gradients: Gradients of one device and dtype, in 32 bits or more.
        scale: Loss scale.

    Returns:
        True if a gradient is infinite or NaN.
    """
    place = gradients[0].device
    found = torch.zeros((), dtype=torch.float32, device=place)
    inverse = torch.tensor(1.0 / scale, dtype=torch.float32, device=place)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
    return bool(found.item())


def is_on_any_rank(fact: bool) -> bool:
    """Return True if `fact` is True on at least one rank of the job; all ranks must call this."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return fact
    place = current_device() or torch.device("cpu")
    largest = torch.tensor([float(fact)], device=place)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return bool(largest.item())
