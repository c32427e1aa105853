# SPDX-License-Identifier: Apache-2.0
"""Subnets and security groups, and what cannot do without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.channels import Channel
from sagemaker_dist.planning.service.limits import amount_faults, shown, text_faults
from sagemaker_dist.planning.service.terms import Terms

# Name, shape of the list, shape of an entry, and how EC2 begins such ids (API reference of
# CreateSubnet and CreateSecurityGroup, 2026-11-21).
_PARTS: Final = (
    ("subnets", "Subnets", "SubnetId", "subnet-"),
    ("security_group_ids", "VpcSecurityGroupIds", "SecurityGroupId", "sg-"),
)


def network_faults(terms: Terms) -> Iterator[OptionError]:
    """Ids that are none, and half a network."""
    given = [name for name, *_ in _PARTS if name in terms.asked]
    missing = [name for name, *_ in _PARTS if name not in terms.asked]
    if given and missing:
        yield OptionError(
            f"{given[0]} is set without {missing[0]}",
            "a network has both",
            f"Pass {missing[0]} as well, or leave {given[0]} out",
        )
    for name, shape, entry, prefix in _PARTS:
        ids = getattr(terms, name)
        if ids is None:
            continue
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            yield OptionError(f"{name} is {shown(ids)}", "it is no list", f"Pass {[ids]!r}")
            continue
        yield from amount_faults(name, len(ids), terms.limit(shape))
        for number, value in enumerate(ids):
            what, mend = f"{name}[{number}]", f"Pass an id such as '{prefix}0a1b2c3d'"
            faults = list(text_faults(what, value, terms.limit(entry), mend=mend))
            yield from faults
            if not faults and value is not None and not value.startswith(prefix):
                yield OptionError(f"{what} is {value!r}", f"such ids begin with {prefix}", mend)


def vpc_faults(terms: Terms, channels: Sequence[Channel]) -> Iterator[OptionError]:
    """No network where one is needed; asked once the SDK's defaults are in."""
    if any(name in terms.asked for name, *_ in _PARTS):
        return
    mend = "Pass subnets and security_group_ids"
    for channel in (each for each in channels if each.file_system is not None):
        yield OptionError(
            f"channel {channel.name!r} is a file system",
            "it is reached within a network of yours alone",
            f"{mend} from which it can be mounted",
        )
    if terms.training_repository_access_mode == "Vpc":
        yield OptionError(
            "training_repository_access_mode is 'Vpc'",
            "the registry is reached within a network of yours alone",
            mend,
        )
