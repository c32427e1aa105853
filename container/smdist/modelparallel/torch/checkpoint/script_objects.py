# SPDX-License-Identifier: Apache-2.0
"""Model and optimizer that the script made last, which checkpoint functions use by default."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.torch.checkpoint.local_values import LocalValues, is_split, unwrapped
from smdist.modelparallel.torch.parallel import Parallel
from smdist.modelparallel.torch.parallel.optimizers import local_parameters, rewrite
from smdist.modelparallel.torch.replicas.loss_scale import LossScale
from smdist.modelparallel.torch.session.current_model import (
    current_model,
    require_model,
    wrapped_optimizer,
)


def model_of(model: nn.Module | None) -> nn.Module:
    """Return `model`; if it is None, the model that smp.parallelize made last.

    Raises:
        OptionError: There is no such model.
    """
    if model is not None:
        return model
    found = require_model()
    assert isinstance(found, Parallel)
    return found


def optimizer_of(optimizer: Any, model: nn.Module) -> Any:
    """Return `optimizer`; if it is None, return the script's last smp.DistributedOptimizer.

    Args:
        optimizer: The user's optimizer, or None.
        model: Model of the optimizer.

    Returns:
        The optimizer, or None. The script's last smp.DistributedOptimizer is returned only if
        `model` is the last model that smp.parallelize made.
    """
    if optimizer is not None or not is_split(model):
        return optimizer
    return wrapped_optimizer() if current_model() is model else None


def loss_scale_of(optimizer: Any) -> LossScale | None:
    """Return the loss scale of a smp.DistributedOptimizer with fp16=True; None if there is none."""
    found = getattr(optimizer, "loss_scaler", None)
    return found if isinstance(found, LossScale) else None


def local(optimizer: Any, holding: LocalValues) -> Any:
    """Return PyTorch's optimizer, with the parameters that are on this rank.

    An optimizer is made with the parameters of the whole model. Once the model is split, this
    function replaces them in the optimizer by this rank's parameters.

    Args:
        optimizer: PyTorch's optimizer, or a smp.DistributedOptimizer around one.
        holding: The model and its values on this rank.
    """
    inner = unwrapped(optimizer)
    if holding.split is not None and holding.split.is_cut:
        rewrite(inner, local_parameters(holding.split.stages))
    return inner
