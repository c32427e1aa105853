# SPDX-License-Identifier: Apache-2.0
"""Arguments of an estimator, read from SageMaker's description of a job, for `attach`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

from sagemaker.instance_group import InstanceGroup

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, parse
from sagemaker_dist.contract.aws_distributions import MPI, SMDDP
from sagemaker_dist.contract.distribution_keys import GROUPS, LAUNCH_KEYS, STRATEGY_KEYS
from sagemaker_dist.contract.sdk_flags import (
    GROUPS_KEY,
    INSTANCE_KEY,
    MPI_FLAG,
    MPI_OPTIONS_KEY,
    SERVED_FLAGS,
    SMDDP_MPI_OPTIONS_KEY,
    is_flag_on,
)
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import service_limits

_FLAGS: Final = {key: SERVED_FLAGS[key] for key in (*LAUNCH_KEYS, *STRATEGY_KEYS)}


def distribution_in(values: dict[str, Any], *, uses_launcher: bool) -> dict[str, Any]:
    """Return {"distribution": value} from the hyperparameters of a job; {} without a distribution.

    Args:
        values: Hyperparameters of the job, by name. This function removes the hyperparameters
            from which it reads the distribution.
        uses_launcher: Whether the sagemaker-dist launcher started the ranks. Only then, flags of
            SageMaker's SDK such as sagemaker_torch_distributed_enabled are read, too.
    """
    distribution: dict[str, Any] = {}
    if KEY in values:
        options = parse(values.pop(KEY))
        request = _mpi_request(values, options)
        if GROUPS_KEY not in values and not request:
            return {"distribution": options}
        distribution = request or options.distribution()
    elif uses_launcher:
        on = [key for key, flag in _FLAGS.items() if is_flag_on(values.get(flag))]
        distribution = {key: {"enabled": True} for key in on[:1]}
    if not distribution:
        return {}
    for name in (*_FLAGS.values(), INSTANCE_KEY):
        values.pop(name, None)
    groups = _decoded(values.pop(GROUPS_KEY, None))
    return {"distribution": {**distribution, GROUPS: groups} if groups else distribution}


def _mpi_request(values: dict[str, Any], options: DataParallel | ModelParallel) -> dict[str, Any]:
    """Return the request for mpirun of a job that is not split, or {}; remove its flags."""
    is_on = is_flag_on(values.pop(MPI_FLAG, None))
    further, of_smddp = values.pop(MPI_OPTIONS_KEY, None), values.pop(SMDDP_MPI_OPTIONS_KEY, None)
    if of_smddp:
        return SMDDP(custom_mpi_options=_decoded(of_smddp)).distribution()
    if not is_on or not isinstance(options, DataParallel):
        return {}
    return MPI(
        processes_per_host=options.processes_per_host, custom_mpi_options=_decoded(further) or ""
    ).distribution()


def use_estimator_groups(rest: dict[str, Any], groups: Any) -> dict[str, Any]:
    """Replace instance groups in `distribution=` by the estimator's groups of the same names.

    SageMaker's SDK compares the groups of a distribution with the estimator's as objects, not by
    name.

    Args:
        rest: Argument `distribution` of the estimator, without its "smdist" keys.
        groups: Argument `instance_groups` of the estimator, a list of InstanceGroup objects.
    """
    if GROUPS not in rest or not isinstance(groups, (list, tuple)):
        return rest
    own = {getattr(each, "instance_group_name", None): each for each in groups}
    names = [getattr(each, "instance_group_name", each) for each in rest[GROUPS]]
    return {**rest, GROUPS: [own.get(name, name) for name in names]}


def amount_faults(names: Collection[str], added: Collection[str]) -> Iterator[OptionError]:
    """Yield an error if the distribution adds too many hyperparameters for SageMaker's limit.

    If `names` alone exceeds the limit, this function yields nothing.

    Args:
        names: Names of the hyperparameters of the user and of the SDK.
        added: Names of the hyperparameters that the distribution adds.
    """
    most = service_limits()["HyperParameters"].most
    if most is not None and len(names) <= most < len({*names, *added}):
        yield OptionError(
            f"hyperparameters has {len(names)} entries, including those of the SDK",
            f"SageMaker allows at most {most}, and the distribution adds {len(added)}",
            "Leave some out, or pass some of them in a file of an input channel",
            "hyperparameters",
            kind="too_many",
        )


def instance_groups_of(resources: dict[str, Any]) -> list[InstanceGroup] | None:
    """Return the instance groups in a job's ResourceConfig, or None for a job without groups."""
    groups = resources.get("InstanceGroups")
    if not groups:
        return None
    parts = ("InstanceGroupName", "InstanceType", "InstanceCount")
    return [InstanceGroup(*(each[name] for name in parts)) for each in groups]


def _decoded(value: Any) -> Any:
    """Return a str decoded from JSON; a str that is not JSON, and other values, stay unchanged.

    The SDK's Framework.attach has decoded some values already.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
