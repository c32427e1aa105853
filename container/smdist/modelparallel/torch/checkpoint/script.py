# SPDX-License-Identifier: Apache-2.0
"""The model and the optimizer of the script, for calls that do not name them."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdist.modelparallel.torch.checkpoint.holding import Holding, is_split, unwrapped


def model_of(model: nn.Module | None) -> nn.Module:
    """What was passed, or the script's.

    Raises:
        OptionError: There is none.
    """
    if model is not None:
        return model
    from smdist.modelparallel.torch.parallel import active  # which imports much that imports us

    return active.the_model()


def optimizer_of(optimizer: Any, model: nn.Module) -> Any:
    """What was passed, or the script's for its model; None where there is none."""
    if optimizer is not None or not is_split(model):
        return optimizer
    from smdist.modelparallel.torch.parallel import active

    return active.wrapped_optimizer() if active.model() is model else None


def local(optimizer: Any, holding: Holding) -> Any:
    """PyTorch's optimizer, with the parameters of this rank.

    One that smp was not told of still has those of the whole model until it steps.
    """
    inner = unwrapped(optimizer)
    if holding.is_cut:
        from smdist.modelparallel.torch.optimizer.rewriting import local_parameters, rewrite

        rewrite(inner, local_parameters(holding.split.stages))
    return inner
