# SPDX-License-Identifier: Apache-2.0
"""A job of SageMaker's API read back into what an estimator was asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.contract.flags import GROUPS_KEY, INSTANCE_KEY, SERVED_FLAGS, is_flag_on
from sagemaker_dist.contract.spelling import GROUPS, STOCK, STRATEGY_KEYS
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import service_limits

_FLAGS: Final = {key: SERVED_FLAGS[key] for key in (*STOCK, *STRATEGY_KEYS)}


def asked_in(values: dict[str, Any], *, image_is_ours: bool) -> dict[str, Any]:
    """The `distribution=` of a job for our launcher, taken out of its hyperparameters.

    Without our document, a flag is ours where the image is.
    """
    asked: dict[str, Any] = {}
    if KEY in values:
        ours = parse(values.pop(KEY))
        if GROUPS_KEY not in values:
            return {"distribution": ours}
        asked = ours.distribution()
    elif image_is_ours:
        on = [key for key, flag in _FLAGS.items() if is_flag_on(values.get(flag))]
        asked = {key: {"enabled": True} for key in on[:1]}
    if not asked:
        return {}
    for name in (*_FLAGS.values(), INSTANCE_KEY):
        values.pop(name, None)
    groups = _decoded(values.pop(GROUPS_KEY, None))
    return {"distribution": {**asked, GROUPS: groups} if groups else asked}


def with_own_groups(rest: dict[str, Any], groups: Any) -> dict[str, Any]:
    """The same where a group is the estimator's own object: SageMaker's SDK knows no other."""
    if GROUPS not in rest or not isinstance(groups, (list, tuple)):
        return rest
    own = {getattr(each, "instance_group_name", None): each for each in groups}
    names = [getattr(each, "instance_group_name", each) for each in rest[GROUPS]]
    return {**rest, GROUPS: [own.get(name, name) for name in names]}


def amount_faults(names: Collection[str], added: Collection[str]) -> Iterator[OptionError]:
    """More hyperparameters than SageMaker takes, once those of the distribution are there."""
    most = service_limits()["HyperParameters"].most
    if most is not None and len(names) <= most < len({*names, *added}):
        yield OptionError(
            f"hyperparameters has {len(names)} entries with those of the SDK",
            f"SageMaker takes at most {most}, of which the distribution needs {len(added)}",
            "Leave some out, or pass a file of them as a channel",
        )


def as_instance_groups(resources: dict[str, Any]) -> list[InstanceGroup] | None:
    """The instance groups of a job's ResourceConfig."""
    groups = resources.get("InstanceGroups")
    if not groups:
        return None
    parts = ("InstanceGroupName", "InstanceType", "InstanceCount")
    return [InstanceGroup(*(each[name] for name in parts)) for each in groups]


def _decoded(value: Any) -> Any:
    """Undo the SDK's encoding of a value, which Framework's attach has undone already."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
