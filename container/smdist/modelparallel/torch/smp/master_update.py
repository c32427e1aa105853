# SPDX-License-Identifier: Apache-2.0
"""Updates of master weights: unscaled gradients, steps that all ranks skip, and the loss scale."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.parallel import Parallel
from smdist.modelparallel.torch.replicas import clip_grad_norm_
from smdist.modelparallel.torch.replicas.loss_scale import LossScale
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights, is_on_any_rank
from smdist.modelparallel.torch.session.current_model import refuse_in_step, wrapped_optimizer

OVERFLOW_NORM: Final = -1.0  # as in SMP v1, the norm of gradients that are not finite
_log = logging.getLogger(__name__)


class MasterUpdate:
    """Updates of a model's master weights by one optimizer; all ranks must call its methods.

    Args:
        inner: PyTorch's optimizer, with this rank's parameters.
        scale: Loss scale; used only if the model's gradients are scaled.

    Attributes:
        overflow: True if a gradient of any rank was infinite or NaN in the latest step, so that all
            ranks skipped it.
    """

    def __init__(self, inner: torch.optim.Optimizer, scale: LossScale) -> None:
        self._inner, self._scale = inner, scale
        self._taken_in: int | None = None  # number of passes whose gradients have been taken
        self.overflow = False

    def prepare(self, model: Parallel, masters: MasterWeights) -> None:
        """Copy this rank's gradients to float32, and check the gradients of all ranks.

        Gradients that are already prepared stay as they are, for example after clipping.

        Args:
            model: Model of the optimizer, which is split into stages.
            masters: Master weights of the model.

        Raises:
            OptionError: A step function is running, or the gradients have another optimizer's loss
                scale.
        """
        refuse_in_step("DistributedOptimizer.step()")
        if self._taken_in == model.num_passes:
            return
        if masters.scaled:
            self._check_scale_is_own()
        scale = self._scale.value if masters.scaled else 1.0
        found = masters.take_gradients(self._parameters(), scale)
        self.overflow = masters.scaled and is_on_any_rank(found)
        self._taken_in = model.num_passes

    def forget(self, masters: MasterWeights | None) -> None:
        """Forget prepared gradients, since the parameters' gradients have been reset or used."""
        self._taken_in = None
        if masters is not None:
            masters.drop_gradients(self._parameters())

    def clip(
        self, model: Parallel, masters: MasterWeights, max_norm: float, norm_type: float
    ) -> float:
        """Scale the prepared gradients so that their norm is at most `max_norm`.

        Args:
            model: Model of the optimizer.
            masters: Master weights of the model.
            max_norm: Largest norm of the gradients of all ranks.
            norm_type: Order of the norm.

        Returns:
            Norm before clipping; OVERFLOW_NORM if a gradient of any rank is not finite.
        """
        self.prepare(model, masters)
        if self.overflow:
            return OVERFLOW_NORM
        parameters = list(self._parameters())
        with masters.in_place(parameters) as clipped:
            return float(clip_grad_norm_(clipped, max_norm, norm_type))

    def step(self, model: Parallel, masters: MasterWeights) -> Any:
        """Run the optimizer's step unless a gradient of any rank is not finite; set the scale.

        Args:
            model: Model of the optimizer.
            masters: Master weights of the model.

        Returns:
            Result of the optimizer's step; None if the step was skipped.
        """
        self.prepare(model, masters)
        try:
            if masters.scaled:
                self._set_scale(is_first=model.groups.rank == 0)
            if self.overflow:
                return None
            self._widen_state(masters)
            return masters.step(self._inner)
        finally:
            self.forget(masters)

    def _set_scale(self, *, is_first: bool) -> None:
        before = self._scale.value
        self._scale.update(self.overflow)
        if self.overflow and is_first:
            _log.warning(
                "Skipped an optimizer step: a gradient is infinite or NaN at the loss scale %g. The"
                " loss scale of the next step is %g.",
                before,
                self._scale.value,
            )

    def _check_scale_is_own(self) -> None:
        latest = wrapped_optimizer()
        if latest is not None and latest.optimizer is not self._inner:
            raise OptionError(
                f"{type(self._inner).__name__} is not in the latest smp.DistributedOptimizer",
                "with fp16=True, the loss is multiplied by the scale of the latest one",
                "Put all parameters into one optimizer, in groups with their own options",
                about="optimizer",
                kind="conflict",
            )

    def _parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of all groups of the optimizer."""
        return (each for group in self._inner.param_groups for each in group["params"])

    def _widen_state(self, masters: MasterWeights) -> None:
        """Convert state that was made for 16-bit parameters, as Adagrad's sums, to float32."""
        for parameter, state in self._inner.state.items():
            if masters.of(parameter) is None:
                continue
            for key, value in state.items():
                is_float = isinstance(value, Tensor) and value.is_floating_point()
                if is_float and value.dtype.itemsize < 4:
                    state[key] = value.float()
