# SPDX-License-Identifier: Apache-2.0
"""Arguments of an estimator, read from the description of a job by SageMaker's API (`attach`)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.contract.distribution_keys import GROUPS, LAUNCH_KEYS, STRATEGY_KEYS
from sagemaker_dist.contract.sdk_flags import GROUPS_KEY, INSTANCE_KEY, SERVED_FLAGS, is_flag_on
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import service_limits

_FLAGS: Final = {key: SERVED_FLAGS[key] for key in (*LAUNCH_KEYS, *STRATEGY_KEYS)}


def distribution_in(values: dict[str, Any], *, uses_launcher: bool) -> dict[str, Any]:
    """Return {"distribution": value} for a job, and remove its keys from the hyperparameters.

    Empty for a job without a distribution. `values` are the job's hyperparameters, which are
    changed. `uses_launcher` is whether the sagemaker-dist launcher started the ranks; only then do
    the flags of SageMaker's own launchers name the distribution.
    """
    distribution: dict[str, Any] = {}
    if KEY in values:
        options = parse(values.pop(KEY))
        if GROUPS_KEY not in values:
            return {"distribution": options}
        distribution = options.distribution()
    elif uses_launcher:
        on = [key for key, flag in _FLAGS.items() if is_flag_on(values.get(flag))]
        distribution = {key: {"enabled": True} for key in on[:1]}
    if not distribution:
        return {}
    for name in (*_FLAGS.values(), INSTANCE_KEY):
        values.pop(name, None)
    groups = _decoded(values.pop(GROUPS_KEY, None))
    return {"distribution": {**distribution, GROUPS: groups} if groups else distribution}


def use_estimator_groups(rest: dict[str, Any], groups: Any) -> dict[str, Any]:
    """Return a distribution with its instance groups as the InstanceGroup objects of the estimator.

    SageMaker's SDK expects these objects, not names or equal objects.
    """
    if GROUPS not in rest or not isinstance(groups, (list, tuple)):
        return rest
    own = {getattr(each, "instance_group_name", None): each for each in groups}
    names = [getattr(each, "instance_group_name", each) for each in rest[GROUPS]]
    return {**rest, GROUPS: [own.get(name, name) for name in names]}


def amount_faults(names: Collection[str], added: Collection[str]) -> Iterator[OptionError]:
    """Yield a fault if the distribution makes the hyperparameters exceed SageMaker's limit.

    `names` are the user's hyperparameters, `added` those of the distribution.
    """
    most = service_limits()["HyperParameters"].most
    if most is not None and len(names) <= most < len({*names, *added}):
        yield OptionError(
            f"hyperparameters has {len(names)} entries with those of the SDK",
            f"SageMaker takes at most {most}, and the distribution needs {len(added)} of them",
            "Leave some out, or pass a file of them as a channel",
            "hyperparameters",
        )


def instance_groups_of(resources: dict[str, Any]) -> list[InstanceGroup] | None:
    """Return the instance groups in a job's ResourceConfig, or None for a job without groups."""
    groups = resources.get("InstanceGroups")
    if not groups:
        return None
    parts = ("InstanceGroupName", "InstanceType", "InstanceCount")
    return [InstanceGroup(*(each[name] for name in parts)) for each in groups]


def _decoded(value: Any) -> Any:
    """Return a value decoded from JSON; a value that is no JSON text stays as it is.

    The SDK's Framework.attach has decoded values already.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
