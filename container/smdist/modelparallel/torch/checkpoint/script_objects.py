# SPDX-License-Identifier: Apache-2.0
"""Model and optimizer that the script made last, which checkpoint functions use by default."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.torch.checkpoint.local_values import LocalValues, is_split, unwrapped
from smdist.modelparallel.torch.parallel import Parallel
from smdist.modelparallel.torch.parallel.optimizers import local_parameters, rewrite
from smdist.modelparallel.torch.session.current_model import (
    current_model,
    require_model,
    wrapped_optimizer,
)


def model_of(model: nn.Module | None) -> nn.Module:
    """Return `model`; if it is None, the model that smp.parallelize made last.

    Raises:
        OptionError: There is none.
    """
    if model is not None:
        return model
    found = require_model()
    assert isinstance(found, Parallel)
    return found


def optimizer_of(optimizer: Any, model: nn.Module) -> Any:
    """Return `optimizer`; if it is None, the smp.DistributedOptimizer of this model, or None."""
    if optimizer is not None or not is_split(model):
        return optimizer
    return wrapped_optimizer() if current_model() is model else None


def local(optimizer: Any, holding: LocalValues) -> Any:
    """Return PyTorch's optimizer, after its parameters are replaced by those of this rank.

    An optimizer outside smp.DistributedOptimizer has the whole model's parameters until it steps.
    """
    inner = unwrapped(optimizer)
    if holding.split is not None and holding.split.is_cut:
        rewrite(inner, local_parameters(holding.split.stages))
    return inner
