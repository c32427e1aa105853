# SPDX-License-Identifier: Apache-2.0
"""Whether the data of a job can be reached from where the job runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.locations import FILE, S3, directory_of, scheme_of

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # CreateTrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One input of a job.

    Attributes:
        name: The channel, such as "training".
        uri: Where its data lies, or None where that is not known yet or is no URI.
        exists: Whether a file:// place is there.
        kind: What holds the data where it is no URI, such as "FileSystemInput".
    """

    name: str
    uri: str | None = None
    exists: bool = True
    kind: str | None = None


def name_faults(channels: Iterable[Channel]) -> Iterator[OptionError]:
    """Every channel that SageMaker would not take by its name, which names a directory too."""
    for channel in channels:
        if not _NAME.fullmatch(channel.name) or channel.name in {".", ".."}:
            yield OptionError(
                f"a channel is called {channel.name!r}",
                "a name is 1 to 64 letters, digits, '.', '-' and '_'",
                "Pass such a name",
            )


def channel_faults(channels: Iterable[Channel], *, on_this_machine: bool) -> Iterator[OptionError]:
    """Every channel that a job could not read, and how to mend it."""
    for channel in channels:
        if channel.uri is not None:
            yield from _uri_faults(channel.name, channel.uri, channel.exists, on_this_machine)
        elif channel.kind is not None and on_this_machine:
            yield OptionError(
                f"channel {channel.name!r} is a {channel.kind}",
                "local_process reads directories of this machine",
                "Mount it and pass the directory as file://",
            )


def _uri_faults(name: str, uri: str, exists: bool, on_this_machine: bool) -> Iterator[OptionError]:
    scheme = scheme_of(uri)
    if not scheme:
        yield _bare_path(name, uri, on_this_machine)
    elif scheme not in {"file", "s3"}:
        yield OptionError(
            f"channel {name!r} is {uri!r}",
            f"{scheme}:// is not read",
            f"Pass {FILE} and a directory" if on_this_machine else f"Pass {S3} and a prefix",
        )
    elif scheme == "s3" and on_this_machine:
        yield OptionError(
            f"channel {name!r} is {uri!r}",
            "local_process does not download from S3 yet",
            f"Download it first (aws s3 sync {uri} data) and pass the directory as file://",
        )
    elif scheme == "file" and not on_this_machine:
        yield OptionError(
            f"channel {name!r} is {uri!r}",
            "an instance of SageMaker cannot read this machine's disk",
            "Upload it (sagemaker_session.upload_data) and pass the s3:// prefix,"
            " or use instance_type='local_process'",
        )
    elif scheme == "file" and not directory_of(uri).startswith("/"):
        yield OptionError(
            f"channel {name!r} is {uri!r}",
            "a file:// place is an absolute path",
            "Pass Path(...).absolute().as_uri()",
        )
    elif scheme == "file" and not exists:
        yield OptionError(
            f"channel {name!r} is {uri!r}",
            f"there is no {directory_of(uri)}",
            "Create the directory or correct the path",
        )


def _bare_path(name: str, uri: str, on_this_machine: bool) -> OptionError:
    mend = "Pass Path(...).absolute().as_uri()" if on_this_machine else f"Pass {S3} and a prefix"
    return OptionError(
        f"channel {name!r} is {uri!r}", "a bare path does not say where the data lies", mend
    )
