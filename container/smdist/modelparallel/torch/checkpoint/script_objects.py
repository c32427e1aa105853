# SPDX-License-Identifier: Apache-2.0
"""Model and optimizer of the script, the defaults of checkpoint functions."""

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
    """Return the model that was passed, or the script's.

    Raises:
        OptionError: There is none.
    """
    if model is not None:
        return model
    found = require_model()
    assert isinstance(found, Parallel)
    return found


def optimizer_of(optimizer: Any, model: nn.Module) -> Any:
    """Return the optimizer that was passed, or the script's for this model, or None."""
    if optimizer is not None or not is_split(model):
        return optimizer
    return wrapped_optimizer() if current_model() is model else None


def local(optimizer: Any, holding: LocalValues) -> Any:
    """Return PyTorch's optimizer, with the parameters of this rank.

    An optimizer that smp does not know has the parameters of the whole model until it steps.
    """
    inner = unwrapped(optimizer)
    if holding.split is not None and holding.split.is_cut:
        rewrite(inner, local_parameters(holding.split.stages))
    return inner
