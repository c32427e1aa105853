# SPDX-License-Identifier: Apache-2.0
"""The channels of a job, as its hosts see them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.runners.local.folder import JobFolder
from sagemaker_dist.runners.local.tree import HostTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of this machine that a host finds below input/data.

    Attributes:
        source: Where it lies, absolute and without links.
        name: Where the host finds it: "training", or "training/part.csv" for a single file.
        writable: Whether hosts may change it.
    """

    source: Path
    name: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """The data of one job."""

    folder: JobFolder
    job: LocalJob

    def mounts(self, host: LocalHost) -> list[Mount]:  # noqa: ARG002 - the same for every host
        """What `host` finds in the directories of its channels."""
        return [_mount(channel.name, Path(channel.path).resolve()) for channel in self.job.channels]

    def place(self, host: LocalHost, tree: HostTree) -> None:
        """Link what `host` finds into its tree, where it sees this machine's disk."""
        for mount in self.mounts(host):
            link = tree.data / mount.name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(mount.source)


def _mount(name: str, source: Path) -> Mount:
    """An S3 prefix may name one object; its channel holds one file."""
    return Mount(source=source, name=f"{name}/{source.name}" if source.is_file() else name)
