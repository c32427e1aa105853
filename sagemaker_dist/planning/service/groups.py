# SPDX-License-Identifier: Apache-2.0
"""Checks of instance groups: jobs whose hosts have several types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.errors import KeyPath, OptionError, closest, subscripted
from sagemaker_dist.planning.channel_checks import Channel
from sagemaker_dist.planning.service.limits import (
    amount_faults,
    number_faults,
    shown,
    text_faults,
)
from sagemaker_dist.planning.service.terms import Terms, is_groups


def group_faults(terms: Terms, chosen: Sequence[str]) -> Iterator[OptionError]:
    """Yield faults of the instance groups; `chosen` are the groups of the distribution."""
    given = terms.instance_groups
    if given is None:
        if chosen:
            yield OptionError(
                f"distribution asks for the instance_groups {shown(list(chosen))}",
                "the estimator has no instance_groups",
                "Pass instance_groups=[...] instead of instance_type and instance_count",
                about="distribution",
            )
        return
    if not is_groups(given):
        yield OptionError(
            f"instance_groups is {shown(given)}",
            "it is not a list of InstanceGroup",
            "Pass a list of InstanceGroup",
            about="instance_groups",
        )
        return
    yield from amount_faults(
        "instance_groups", len(given), replace(terms.limit("InstanceGroups"), least=1)
    )
    for name in sorted({"instance_type", "instance_count"} & terms.passed):
        yield OptionError(
            f"{name} is set with instance_groups",
            "each group has its own",
            f"Leave {name} out, or leave instance_groups out",
            about=name,
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
                "names must be unique",
                "Rename one of them",
                about="instance_groups",
            )


def hostless_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield a fault for a job without hosts; call it after the SDK's defaults are set."""
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
        )
    elif kind is not None and (not isinstance(kind, str) or kind not in known):
        hint = closest(str(kind), known)
        yield OptionError(
            f"the instance_type of {what} is {kind!r}",
            "SageMaker training has no such instance type",
            hint if hint.endswith("?") else "Pass a type such as 'ml.p4d.24xlarge'",
            about=(*key, "instance_type"),
        )
    count = replace(terms.limit("TrainingInstanceCount"), least=1)
    yield from number_faults(
        (*key, "instance_count"),
        group["InstanceCount"],
        count,
        label=f"the instance_count of {what}",
    )


def _chosen_faults(chosen: list[str], names: list[Any]) -> Iterator[OptionError]:
    what = f"distribution asks for the instance_groups {shown(chosen)}"
    if len(chosen) != 1:
        yield OptionError(
            what, "it runs on exactly one group", "Name one group", about="distribution"
        )
    for name in chosen:
        if None not in names and name not in names:
            yield OptionError(
                what, f"there is no group {name!r}", closest(name, names), about="distribution"
            )


def channel_group_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """Yield channels for groups that do not exist, and groups on some channels only."""
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
        )


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))
