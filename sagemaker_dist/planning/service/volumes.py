# SPDX-License-Identifier: Apache-2.0
"""Checks of input channels whose data is in Amazon EFS or FSx for Lustre."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.channel_checks import Channel, FileSystem, mount_faults
from sagemaker_dist.planning.service.limits import text_faults
from sagemaker_dist.planning.service.terms import Terms


def volume_faults(terms: Terms, channel: Channel, place: FileSystem) -> Iterator[OptionError]:
    """Yield the faults that prevent SageMaker from mounting file system `place` as `channel`."""
    of = f"of channel {channel.name!r}"
    yield from text_faults(
        "uri",
        place.id,
        terms.limit("FileSystemId"),
        hint="Pass an id such as 'fs-0123456789abcdef0'",
        label=f"the file system {of}",
    )
    yield from mount_faults(channel)
    what = f"the directory {of} is {place.directory!r}"
    if not place.directory.startswith("/"):
        hint = "Pass a directory that begins with '/'"
        yield OptionError(what, "it is not an absolute path", hint, "uri", "relative")
    elif ".." in PurePosixPath(place.directory).parts:
        hint = "Pass the path from the file system's root"
        yield OptionError(what, "'..' is not allowed in the path", hint, "uri", "outside")
    elif place.kind == "FSxLustre" and not place.directory.strip("/"):
        yield OptionError(
            what,
            "a path in FSx for Lustre begins with the file system's mount name",
            "Pass '/' followed by the MountName that FSx shows for the file system",
            about="uri",
            kind="incomplete",
        )
    if channel.instance_groups:
        yield OptionError(
            f"instance_groups {of} is set",
            "SageMaker mounts a file system on the instances of all groups",
            "Leave instance_groups out",
            about="instance_groups",
            kind="conflict",
        )
