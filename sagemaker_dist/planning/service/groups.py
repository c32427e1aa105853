# SPDX-License-Identifier: Apache-2.0
"""Instance groups: a job whose hosts are of several kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.errors import OptionError, closest
from sagemaker_dist.planning.channels import Channel
from sagemaker_dist.planning.service.limits import (
    amount_faults,
    number_faults,
    shown,
    text_faults,
)
from sagemaker_dist.planning.service.terms import Terms, is_groups


def group_faults(terms: Terms, chosen: Sequence[str]) -> Iterator[OptionError]:
    """What is wrong with the groups themselves; `chosen` are those of the distribution."""
    given = terms.instance_groups
    if given is None:
        if chosen:
            yield OptionError(
                f"distribution asks for the instance_groups {shown(list(chosen))}",
                "the estimator has no instance_groups",
                "Pass instance_groups=[...] instead of instance_type and instance_count",
            )
        return
    if not is_groups(given):
        yield OptionError(
            f"instance_groups is {shown(given)}",
            "it is no list of InstanceGroup",
            "Pass a list of InstanceGroup",
        )
        return
    yield from amount_faults(
        "instance_groups", len(given), replace(terms.limit("InstanceGroups"), least=1)
    )
    for name in sorted({"instance_type", "instance_count"} & terms.asked):
        yield OptionError(
            f"{name} is set with instance_groups",
            "each group has its own",
            f"Leave {name} out, or leave instance_groups out",
        )
    for number, group in enumerate(given):
        yield from _part_faults(terms, f"instance_groups[{number}]", group)
    names = [group["InstanceGroupName"] for group in given]
    for name, times in Counter(name for name in names if name is not None).items():
        if times > 1:
            yield OptionError(
                f"instance_groups has {times} groups called {name!r}",
                "names are unique",
                "Rename one of them",
            )
    if chosen:
        yield from _chosen_faults(list(chosen), names)


def hostless_faults(terms: Terms) -> Iterator[OptionError]:
    """A job without hosts; asked once the SDK's defaults are in."""
    missing = sorted({"instance_type", "instance_count"} - terms.asked)
    if missing and "instance_groups" not in terms.asked:
        yield OptionError(
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} left out",
            "SageMaker has to know which instances, and how many",
            "Pass instance_type and instance_count, or instance_groups",
        )


def _part_faults(terms: Terms, what: str, group: Mapping[str, Any]) -> Iterator[OptionError]:
    yield from text_faults(
        f"the name of {what}",
        group["InstanceGroupName"],
        terms.limit("InstanceGroupName"),
        mend="Pass a name",
    )
    known = {*terms.limit("TrainingInstanceType").values, *training_instances()}
    kind = group["InstanceType"]
    if isinstance(kind, str) and kind in {LOCAL_PROCESS, *LOCAL}:
        yield OptionError(
            f"the instance_type of {what} is {kind!r}",
            "instance groups run on SageMaker alone",
            "Pass instance_type and instance_count instead of instance_groups",
        )
    elif kind is not None and (not isinstance(kind, str) or kind not in known):
        mend = closest(str(kind), known)
        yield OptionError(
            f"the instance_type of {what} is {kind!r}",
            "SageMaker training has no such instance type",
            mend if mend.endswith("?") else "Pass a type such as 'ml.p4d.24xlarge'",
        )
    count = replace(terms.limit("TrainingInstanceCount"), least=1)
    yield from number_faults(f"the instance_count of {what}", group["InstanceCount"], count)


def _chosen_faults(chosen: list[str], names: list[Any]) -> Iterator[OptionError]:
    what = f"distribution asks for the instance_groups {shown(chosen)}"
    if len(chosen) != 1:
        yield OptionError(what, "it runs on exactly one of them", "Name one group")
    for name in chosen:
        if None not in names and name not in names:
            yield OptionError(what, f"there is no group {name!r}", closest(name, names))


def channel_group_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """Channels that are for groups which do not exist, or some for groups and others not."""
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
                )
    chosen = [each.name for each in channels if each.instance_groups]
    others = [
        each.name for each in channels if not each.instance_groups and each.file_system is None
    ]
    if chosen and others:
        yield OptionError(
            f"channels {_named(chosen)} are for instance groups and {_named(others)} are not",
            "SageMaker wants it said of all channels or of none",
            "Pass instance_groups for every channel, or for none",
        )


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))
