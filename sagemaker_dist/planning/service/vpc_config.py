# SPDX-License-Identifier: Apache-2.0
"""Checks of subnets and security groups, and of options that need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.channel_checks import Channel
from sagemaker_dist.planning.service.limits import entry_count_faults, short_repr, text_faults
from sagemaker_dist.planning.service.terms import Terms

# Name of the argument, shape of the list, shape of an entry, and the beginning of such ids in EC2
# (API reference of CreateSubnet and CreateSecurityGroup, 2026-11-21).
_PARTS: Final = (
    ("subnets", "Subnets", "SubnetId", "subnet-"),
    ("security_group_ids", "VpcSecurityGroupIds", "SecurityGroupId", "sg-"),
)


def network_faults(terms: Terms) -> Iterator[OptionError]:
    """Yield faults of subnets and security groups: invalid ids, or only one of the two options."""
    given = [name for name, *_ in _PARTS if name in terms.passed]
    missing = [name for name, *_ in _PARTS if name not in terms.passed]
    if given and missing:
        yield OptionError(
            f"{given[0]} is set without {missing[0]}",
            "a VPC configuration needs subnets and security groups",
            f"Pass {missing[0]} too, or leave {given[0]} out",
            about=given[0],
            kind="missing",
        )
    for name, shape, entry, prefix in _PARTS:
        ids = getattr(terms, name)
        if ids is None:
            continue
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            yield OptionError(
                f"{name} is {short_repr(ids)}",
                "it is not a list",
                f"Pass {[ids]!r}",
                about=name,
                kind="type",
            )
            continue
        yield from entry_count_faults(name, len(ids), terms.limit(shape))
        for number, value in enumerate(ids):
            hint = f"Pass an id such as '{prefix}0a1b2c3d'"
            faults = list(text_faults((name, number), value, terms.limit(entry), hint=hint))
            yield from faults
            if not faults and value is not None and not value.startswith(prefix):
                what = f"{name}[{number}] is {value!r}"
                why = f"ids in {name} begin with {prefix}"
                yield OptionError(what, why, hint, about=(name, number))


def vpc_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """Yield a fault for each option that needs a VPC, if the job has no VPC.

    This check is called after SageMaker's SDK has set the defaults of missing arguments.
    """
    if any(name in terms.passed for name, *_ in _PARTS):
        return
    hint = "Pass subnets and security_group_ids"
    for channel in (each for each in channels if each.file_system is not None):
        yield OptionError(
            f"channel {channel.name!r} is a file system",
            "a file system can be reached only from your own VPC",
            f"{hint} from which it can be mounted",
            about=("inputs", channel.name),
            kind="missing",
        )
    if terms.training_repository_access_mode == "Vpc":
        yield OptionError(
            "training_repository_access_mode is 'Vpc'",
            "the registry can be reached only from your own VPC",
            hint,
            about="training_repository_access_mode",
            kind="missing",
        )
