# SPDX-License-Identifier: Apache-2.0
"""Directories of Amazon EFS and FSx for Lustre that a job mounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.channels import Channel, FileSystem, mount_faults
from sagemaker_dist.planning.service.limits import text_faults
from sagemaker_dist.planning.service.terms import Terms


def volume_faults(terms: Terms, channel: Channel, place: FileSystem) -> Iterator[OptionError]:
    """A file system that could not be mounted as this channel."""
    of = f"of channel {channel.name!r}"
    yield from text_faults(
        f"the file system {of}",
        place.id,
        terms.limit("FileSystemId"),
        mend="Pass an id such as 'fs-0123456789abcdef0'",
    )
    yield from mount_faults(channel)
    what = f"the directory {of} is {place.directory!r}"
    if not place.directory.startswith("/"):
        yield OptionError(what, "it is no absolute path", "Pass one that begins with '/'")
    elif ".." in PurePosixPath(place.directory).parts:
        yield OptionError(what, "'..' leads out of it", "Pass a path from its root")
    elif place.kind == "FSxLustre" and not place.directory.strip("/"):
        yield OptionError(
            what,
            "a path of FSx for Lustre begins with the mount name",
            "Pass '/' and the file system's MountName, as FSx describes it",
        )
    if channel.instance_groups:
        yield OptionError(
            f"instance_groups {of} is set",
            "a file system is mounted by all instances",
            "Leave instance_groups out",
        )
