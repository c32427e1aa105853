# SPDX-License-Identifier: Apache-2.0
"""Checks of instance groups, for jobs whose hosts have several instance types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.errors import KeyPath, OptionError, closest, subscripted
from sagemaker_dist.planning.channel_checks import Channel
from sagemaker_dist.planning.service.limits import (
    entry_count_faults,
    number_faults,
    short_repr,
    text_faults,
)
from sagemaker_dist.planning.service.terms import Terms, is_groups


def group_faults(terms: Terms, chosen: Sequence[str]) -> Iterator[OptionError]:
    """Yield the faults of a job's instance groups.

    Args:
        terms: Arguments of the job.
        chosen: Names of the groups in the distribution.
    """
    given = terms.instance_groups
    if given is None:
        if chosen:
            yield OptionError(
                f"distribution requests the instance_groups {short_repr(list(chosen))}",
                "the estimator has no instance_groups",
                "Pass instance_groups=[...] instead of instance_type and instance_count",
                about="distribution",
                kind="missing",
            )
        return
    if not is_groups(given):
        what, why = f"instance_groups is {short_repr(given)}", "it is not a list of InstanceGroup"
        yield OptionError(what, why, "Pass a list of InstanceGroup", "instance_groups", "type")
        return
    yield from entry_count_faults(
        "instance_groups", len(given), replace(terms.limit("InstanceGroups"), least=1)
    )
    for name in sorted({"instance_type", "instance_count"} & terms.passed):
        yield OptionError(
            f"{name} and instance_groups are both set",
            "each instance group has its own instance_type and instance_count",
            f"Leave {name} out, or leave instance_groups out",
            about=name,
            kind="conflict",
        )
    for number, group in enumerate(given):
        yield from _part_faults(terms, ("instance_groups", number), group)
    names = [group["InstanceGroupName"] for group in given]
    yield from _repeated_faults(names)
    if chosen:
        yield from _chosen_faults(list(chosen), names)


def _repeated_faults(names: Sequence[Any]) -> Iterator[OptionError]:
    for name, times in Counter(name for name in names if name is not None).items():
        if times > 1:
            yield OptionError(
                f"instance_groups has {times} groups named {name!r}",
                "each group needs a different name",
                "Rename one of them",
                about="instance_groups",
                kind="repeated",
            )


def hostless_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield a fault if neither instance type and count nor instance groups are given.

    This check is called after SageMaker's SDK has set the defaults of missing arguments.
    """
    missing = sorted({"instance_type", "instance_count"} - terms.passed)
    if missing and "instance_groups" not in terms.passed:
        yield OptionError(
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} left out",
            "SageMaker needs the type and the number of instances",
            "Pass instance_type and instance_count, or instance_groups",
            about=missing[0],
            kind="missing",
        )


def _part_faults(terms: Terms, key: KeyPath, group: Mapping[str, Any]) -> Iterator[OptionError]:
    what = subscripted(key)
    yield from text_faults(
        (*key, "instance_group_name"),
        group["InstanceGroupName"],
        terms.limit("InstanceGroupName"),
        hint="Pass a name",
        label=f"the name of {what}",
    )
    known = {*terms.limit("TrainingInstanceType").values, *training_instances()}
    kind = group["InstanceType"]
    if isinstance(kind, str) and kind in {LOCAL_PROCESS, *LOCAL}:
        yield OptionError(
            f"the instance_type of {what} is {kind!r}",
            "instance groups run only on SageMaker",
            "Pass instance_type and instance_count instead of instance_groups",
            about=(*key, "instance_type"),
            kind="unsupported",
        )
    elif kind is not None and (not isinstance(kind, str) or kind not in known):
        hint = closest(str(kind), known)
        yield OptionError(
            f"the instance_type of {what} is {kind!r}",
            "SageMaker training has no such instance type",
            hint if hint.endswith("?") else "Pass a type such as 'ml.p4d.24xlarge'",
            about=(*key, "instance_type"),
            kind="unknown",
        )
    count = replace(terms.limit("TrainingInstanceCount"), least=1)
    yield from number_faults(
        (*key, "instance_count"),
        group["InstanceCount"],
        count,
        label=f"the instance_count of {what}",
    )


def _chosen_faults(chosen: list[str], names: list[Any]) -> Iterator[OptionError]:
    what = f"distribution requests the instance_groups {short_repr(chosen)}"
    if len(chosen) != 1:
        yield OptionError(
            what,
            "a distribution runs on exactly one group",
            "Name one group",
            about="distribution",
            kind="too_many",
        )
    for name in chosen:
        if None not in names and name not in names:
            yield OptionError(
                what,
                f"the job has no group {name!r}",
                closest(name, names),
                about="distribution",
                kind="unknown",
            )


def channel_group_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """Yield a fault for each unknown instance group that a channel names.

    Yield another fault if some channels name instance groups and others do not. Channels whose
    data is in a file system need no instance groups.
    """
    groups = terms.instance_groups if is_groups(terms.instance_groups) else ()
    names = [each["InstanceGroupName"] for each in groups]
    for channel in channels:
        for name in channel.instance_groups:
            if None not in (name, *names) and name not in names:
                yield OptionError(
                    f"channel {channel.name!r} is for the instance group {name!r}",
                    "the job has no such group",
                    closest(str(name), names)
                    if names
                    else "Leave instance_groups of the channel out",
                    about=("inputs", channel.name, "instance_groups"),
                    kind="unknown",
                )
    chosen = [each.name for each in channels if each.instance_groups]
    others = [
        each.name for each in channels if not each.instance_groups and each.file_system is None
    ]
    if chosen and others:
        yield OptionError(
            f"channels {_named(chosen)} have instance_groups and {_named(others)} have none",
            "SageMaker needs instance_groups on all channels or on none",
            "Pass instance_groups for every channel, or for none",
            about=("inputs", others[0]),
            kind="missing",
        )


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))
