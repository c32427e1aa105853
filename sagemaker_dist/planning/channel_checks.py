# SPDX-License-Identifier: Apache-2.0
"""Checks that a job can read its data from where it runs.

DataSource              how a job of this machine reads it
file://                 the directory itself; a copy of its part where it is sharded
S3DataSource            downloaded once for all hosts
FileSystemDataSource    the directory that `file_systems` maps it to
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, within
from sagemaker_dist.planning.locations import FILE, S3, directory_of, meant_place, scheme_of

MODES: Final = ("File", "FastFile", "Pipe")
DISTRIBUTIONS: Final = ("FullyReplicated", "ShardedByS3Key")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # CreateTrainingJob
_KNOWN: Final = frozenset(
    {
        "ChannelName", "DataSource", "ContentType", "CompressionType", "InputMode",
        "RecordWrapperType", "ShuffleConfig",
        "S3DataType", "S3Uri", "S3DataDistributionType",
        "FileUri", "FileDataDistributionType",
        "FileSystemId", "FileSystemType", "FileSystemAccessMode", "DirectoryPath",
    }
)  # fmt: skip
_SPELLINGS: Final = {"InstanceGroupNames": "instance_groups"}  # the others are in snake_case


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A directory of Amazon EFS or FSx.

    Attributes:
        kind: FileSystemType, "EFS" or "FSxLustre".
        directory: DirectoryPath, from the root of the file system.
        here: Directory of this machine where its root is mounted, or None.
    """

    id: str
    directory: str
    kind: str | None = None
    here: str | None = None

    @property
    def path(self) -> str | None:
        """Return the directory on this machine, or None."""
        return self.here and str(PurePosixPath(self.here, self.directory.lstrip("/")))


_VOLUME: Final = re.compile(r"(efs|fsx)://([^/]*)(.*)", re.DOTALL)
_KINDS: Final = {"efs": "EFS", "fsx": "FSxLustre"}


def parse_file_system(uri: str) -> FileSystem | None:
    """Return the file system of efs://fs-…/directory or fsx://fs-…/mount/directory; None for other
    URIs.
    """
    match = _VOLUME.fullmatch(uri)
    if match is None:
        return None
    scheme, name, directory = match.groups()
    return FileSystem(id=name, kind=_KINDS[scheme], directory=directory or "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One input channel of a job, with the fields of CreateTrainingJob.

    None means left out, or a pipeline variable.

    Attributes:
        name: Name, such as "training".
        uri: URI of its data, or None if unknown or not a URI.
        exists: Whether a path of this machine exists.
        kind: Type of the data source if it is not a URI, such as "RecordSet".
        mode: InputMode of the channel or of the job.
        instance_groups: Instance groups that get the channel; () for all. None in it is a pipeline
            variable.
        other: Fields without meaning for a local job.
    """

    name: str
    uri: Any = None
    exists: bool = True
    kind: str | None = None
    file_system: FileSystem | None = None
    mode: Any = None
    distribution: Any = None
    data_type: Any = None
    compression: Any = None
    record_wrapper: Any = None
    is_shuffled: bool = False
    instance_groups: tuple[str | None, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def directory(self) -> str | None:
        """Return its directory or file on this machine, or None."""
        if self.file_system is not None:
            return self.file_system.path
        is_file = isinstance(self.uri, str) and self.uri.startswith(FILE)
        return directory_of(self.uri) if is_file else None


def parse_channel(
    name: str,
    part: Mapping[str, Any],
    *,
    mode: Any = None,
    file_systems: Mapping[str, str] | None = None,
) -> Channel:
    """Return the channel for a member of InputDataConfig; `mode` is the job's."""
    sources = part.get("DataSource", {})
    source = {key: value for place in sources.values() for key, value in place.items()}
    return Channel(
        name=name,
        uri=source.get("FileUri", source.get("S3Uri")),
        kind=next((each for each in sources if each == "DatasetSource"), None),
        file_system=_file_system(source, file_systems or {}),
        mode=part.get("InputMode", mode),
        distribution=source.get("S3DataDistributionType", source.get("FileDataDistributionType")),
        data_type=source.get("S3DataType"),
        compression=part.get("CompressionType"),
        record_wrapper=part.get("RecordWrapperType"),
        is_shuffled="ShuffleConfig" in part,
        instance_groups=tuple(source.get("InstanceGroupNames") or ()),
        other=tuple(each for each in (*source, *part) if each not in _KNOWN),
    )


def _file_system(source: Mapping[str, Any], file_systems: Mapping[str, str]) -> FileSystem | None:
    if "FileSystemId" not in source:
        return None
    name = str(source["FileSystemId"])
    here = file_systems.get(name)
    directory = str(source.get("DirectoryPath", "/"))
    return FileSystem(
        id=name,
        directory=directory,
        kind=source.get("FileSystemType"),
        here=None if here is None else str(here),
    )


def name_faults(channels: Iterable[Channel]) -> Iterator[OptionError]:
    """Yield channels whose name SageMaker does not allow; the name is also a directory's."""
    for channel in channels:
        if not _NAME.fullmatch(channel.name) or channel.name in {".", ".."}:
            yield OptionError(
                f"a channel is named {channel.name!r}",
                "a name is 1 to 64 letters, digits, '.', '-' and '_'",
                "Rename the channel",
                about=("inputs", channel.name),
            )


def channel_faults(
    channels: Iterable[Channel], *, on_this_machine: bool, instance_type: str = "local_process"
) -> Iterator[OptionError]:
    """Yield channels that the job could not read, with hints."""
    channels = list(channels)
    for channel in channels:
        if on_this_machine:
            yield from within(_local_faults(channel, instance_type), "inputs", channel.name)
        if channel.uri is not None:
            faults = _uri_faults(channel, on_this_machine)
            yield from within(faults, "inputs", channel.name, "uri")
    if on_this_machine:
        yield from _pipe_faults(channels)


def _local_faults(channel: Channel, here: str) -> Iterator[OptionError]:
    if channel.file_system is not None:
        yield from _file_system_faults(channel, channel.file_system, here)
    elif channel.kind is not None:
        yield OptionError(
            f"channel {channel.name!r} is a {channel.kind}",
            f"{here} reads file:// and s3:// places",
            "Pass such a URI, or a TrainingInput with it",
        )
    yield from _value_faults(channel)
    if channel.data_type not in (None, "S3Prefix"):
        yield OptionError(
            f"s3_data_type of channel {channel.name!r} is {channel.data_type!r}",
            f"{here} reads all objects below a prefix, not manifests",
            "Pass a prefix and leave s3_data_type out",
            about="s3_data_type",
        )
    if channel.record_wrapper not in (None, "None"):
        yield OptionError(
            f"record_wrapping of channel {channel.name!r} is {channel.record_wrapper!r}",
            f"{here} passes objects on unchanged",
            "Write the objects as RecordIO and leave record_wrapping out",
            about="record_wrapping",
        )
    yield from _pipe_only_faults(channel)
    for part in channel.other:
        yield OptionError(
            f"{_spelling(part)} of channel {channel.name!r} is set",
            f"it has no meaning on {here}",
            "Leave it out",
            about=_spelling(part),
        )


def _value_faults(channel: Channel) -> Iterator[OptionError]:
    known = {
        "input_mode": (channel.mode, MODES),
        "distribution": (channel.distribution, DISTRIBUTIONS),
        "compression": (channel.compression, ("None", "Gzip")),
    }
    for name, (value, valid) in known.items():
        if value is not None and value not in valid:
            yield OptionError(
                f"{name} of channel {channel.name!r} is {value!r}",
                "SageMaker has no such value",
                closest(str(value), valid),
                about=name,
            )


def _pipe_only_faults(channel: Channel) -> Iterator[OptionError]:
    if channel.mode == "Pipe":
        return
    if channel.compression == "Gzip":
        yield OptionError(
            f"compression of channel {channel.name!r} is 'Gzip'",
            "only Pipe mode unpacks data, as on SageMaker",
            "Leave compression out and unpack in the script, or pass input_mode='Pipe'",
            about="compression",
        )
    if channel.is_shuffled:
        yield OptionError(
            f"shuffle_config of channel {channel.name!r} is set",
            "only Pipe mode has an order of objects",
            "Leave shuffle_config out and shuffle in the script, or pass input_mode='Pipe'",
            about="shuffle_config",
        )


def _pipe_faults(channels: list[Channel]) -> Iterator[OptionError]:
    for pipe in (channel for channel in channels if channel.mode == "Pipe"):
        fifo = re.compile(re.escape(pipe.name) + r"_\d+")
        for other in (each.name for each in channels if fifo.fullmatch(each.name)):
            yield OptionError(
                f"a channel is named {other!r}",
                f"a FIFO of channel {pipe.name!r} has this name",
                "Pass another name",
                about=("inputs", other),
            )


def mount_faults(channel: Channel) -> Iterator[OptionError]:
    """Yield a fault if a file system is requested as a stream."""
    if channel.mode in ("FastFile", "Pipe"):
        yield OptionError(
            f"input_mode of channel {channel.name!r} is {channel.mode!r}",
            "SageMaker mounts file systems only in File mode",
            "Pass input_mode='File'",
            about="input_mode",
        )


def _file_system_faults(channel: Channel, place: FileSystem, here: str) -> Iterator[OptionError]:
    what = f"channel {channel.name!r} is {place.directory!r} of file system {place.id!r}"
    yield from mount_faults(channel)
    if ".." in PurePosixPath(place.directory).parts:
        yield OptionError(what, "'..' leads out of the file system", "Pass a path from its root")
    elif place.here is None:
        yield OptionError(
            what,
            f"{here} does not know where it is mounted on this machine",
            f"Pass sagemaker_session=LocalSession(file_systems={{{place.id!r}: '/its/directory'}}),"
            " or the directory as file://",
        )
    elif not place.here.startswith("/"):
        yield OptionError(
            what, f"file_systems maps it to {place.here!r}, a relative path", "Pass an absolute one"
        )
    elif not channel.exists:
        yield OptionError(
            what, f"there is no {place.path}", "Create the directory or correct file_systems"
        )


def _uri_faults(channel: Channel, on_this_machine: bool) -> Iterator[OptionError]:
    what, uri = f"channel {channel.name!r} is {channel.uri!r}", str(channel.uri)
    scheme, meant = scheme_of(uri), meant_place(uri)
    if meant is not None:
        yield OptionError(what, f"an S3 URI begins with {S3}", f"Did you mean {meant!r}?")
    elif not scheme:
        hint = "Path(...).absolute().as_uri()" if on_this_machine else f"{S3} and a prefix"
        yield OptionError(what, "a bare path is ambiguous", f"Pass {hint}")
    elif scheme == "s3":
        if not uri.removeprefix(S3).partition("/")[0]:
            yield OptionError(
                what, "it does not name a bucket", f"Pass {S3}, a bucket and a prefix"
            )
    elif scheme != "file":
        known = f"{FILE} and a directory, or {S3}" if on_this_machine else S3
        yield OptionError(what, f"{scheme}:// is not supported", f"Pass {known} and a prefix")
    elif not on_this_machine:
        yield OptionError(
            what,
            "an instance of SageMaker cannot read this machine's disk",
            "Upload it to S3 and pass the s3:// prefix, or use instance_type='local_process'",
        )
    elif not directory_of(uri).startswith("/"):
        yield OptionError(
            what, "a file:// URI has an absolute path", "Pass Path(...).absolute().as_uri()"
        )
    elif not channel.exists:
        yield OptionError(
            what, f"there is no {directory_of(uri)}", "Create the directory or correct the path"
        )


def _spelling(part: str) -> str:
    return _SPELLINGS.get(part, re.sub(r"(?<!^)(?=[A-Z])", "_", part).lower())
