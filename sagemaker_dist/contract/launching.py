# SPDX-License-Identifier: Apache-2.0
"""How a job asks our launcher: our document, or the flags of SageMaker's SDK.

DataParallel()                             sagemaker_dist_config = {"version": ...}
the same of TensorFlow                     sagemaker_dist_config = {..., "framework": ...}
{"torch_distributed": {"enabled": True}}   sagemaker_torch_distributed_enabled = true
{..., "instance_groups": [group]}          sagemaker_distribution_instance_groups = ["name"]
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.contract.distribution import Distribution
from sagemaker_dist.contract.flags import GROUPS_KEY, INSTANCE_KEY, SERVED_FLAGS
from sagemaker_dist.contract.wire import KEY, render


def launch_parameters(
    asked: Distribution, instance_type: Any, framework: str | None = None
) -> dict[str, Any]:
    """The hyperparameters by which our launcher is asked, before they are encoded.

    Without a framework the launcher asks what its image holds.
    """
    added: dict[str, Any] = {}
    if asked.options is not None:
        added[KEY] = render(asked.options, framework)
    if asked.stock is not None:
        added[SERVED_FLAGS[asked.stock]] = True
        if instance_type is not None:
            added[INSTANCE_KEY] = instance_type
    if asked.is_launched and asked.groups:
        added[GROUPS_KEY] = asked.group_names
    return added
