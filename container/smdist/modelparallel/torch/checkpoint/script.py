# SPDX-License-Identifier: Apache-2.0
"""The model and the optimizer of the script, for calls that do not name them."""

from __future__ import annotations

from typing import Any

from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint.holding import is_split


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
    """What was passed, or the script's for its model; None where there is none.

    Raises:
        OptionError: It has several.
    """
    if optimizer is not None or not is_split(model):
        return optimizer
    from smdist.modelparallel.torch.parallel import active

    if active.model() is not model:
        return None
    found = active.optimizers()
    if len(found) > 1:
        raise OptionError(
            f"the script has {len(found)} optimizers",
            "a checkpoint holds the state of one",
            "Pass optimizer=, and put the state_dict() of others into user_content",
        )
    return found[0] if found else None
