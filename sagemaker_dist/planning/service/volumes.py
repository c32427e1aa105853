# SPDX-License-Identifier: Apache-2.0
"""Checks of directories in Amazon EFS and FSx for Lustre that a job mounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.channel_checks import Channel, FileSystem, mount_faults
from sagemaker_dist.planning.service.limits import text_faults
from sagemaker_dist.planning.service.terms import Terms


def volume_faults(terms: Terms, channel: Channel, place: FileSystem) -> Iterator[OptionError]:
    """Yield faults that keep a file system from being mounted as this channel."""
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
        yield OptionError(
            what, "it is not an absolute path", "Pass one that begins with '/'", about="uri"
        )
    elif ".." in PurePosixPath(place.directory).parts:
        yield OptionError(
            what, "'..' leads out of the file system", "Pass a path from its root", about="uri"
        )
    elif place.kind == "FSxLustre" and not place.directory.strip("/"):
        yield OptionError(
            what,
            "a path of FSx for Lustre begins with the mount name",
            "Pass '/' and the file system's MountName, as FSx describes it",
            about="uri",
        )
    if channel.instance_groups:
        yield OptionError(
            f"instance_groups {of} is set",
            "all instances mount a file system",
            "Leave instance_groups out",
            about="instance_groups",
        )
