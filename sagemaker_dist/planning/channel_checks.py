# SPDX-License-Identifier: Apache-2.0
"""Checks that a job can read its input channels, on SageMaker or on this machine.

DataSource              how a local job reads it
file:// URI             in place; if it is sharded, each host gets a copy of its part
S3DataSource            downloaded once for all hosts
FileSystemDataSource    in place, in the directory where this machine mounts the file system
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, within
from sagemaker_dist.planning.locations import FILE, S3, corrected_s3_uri, directory_of, scheme_of

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
_SPELLINGS: Final = {"InstanceGroupNames": "instance_groups"}  # all other names in snake_case


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Directory in a file system of Amazon EFS or FSx for Lustre.

    Attributes:
        id: FileSystemId, such as "fs-0123456789abcdef0".
        directory: DirectoryPath, from the root of the file system.
        kind: FileSystemType, "EFS" or "FSxLustre"; None if unknown.
        here: Directory of this machine where the root is mounted; None if unknown.
    """

    id: str
    directory: str
    kind: str | None = None
    here: str | None = None

    @property
    def path(self) -> str | None:
        """Return the path of `directory` on this machine; None if the mount point is unknown."""
        return self.here and str(PurePosixPath(self.here, self.directory.lstrip("/")))


_VOLUME: Final = re.compile(r"(efs|fsx)://([^/]*)(.*)", re.DOTALL)
_KINDS: Final = {"efs": "EFS", "fsx": "FSxLustre"}


def parse_file_system(uri: str) -> FileSystem | None:
    """Return the file system in a URI efs://fs-…/directory or fsx://fs-…/mount/directory.

    Returns None for other URIs.
    """
    match = _VOLUME.fullmatch(uri)
    if match is None:
        return None
    scheme, name, directory = match.groups()
    return FileSystem(id=name, kind=_KINDS[scheme], directory=directory or "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Input channel of a job.

    A field that is None was left out, or is a pipeline variable.

    Attributes:
        name: Name of the channel, such as "training".
        uri: URI of the channel's data; None if unknown, or if the data has no URI.
        exists: False if the data is on this machine and its path does not exist.
        kind: Type of a data source without a URI, such as "RecordSet".
        file_system: Directory of EFS or FSx that has the data, or None.
        mode: InputMode of the channel, or of the job if the channel has none.
        distribution: S3DataDistributionType or FileDataDistributionType of CreateTrainingJob.
        data_type: S3DataType of CreateTrainingJob.
        compression: CompressionType of CreateTrainingJob.
        record_wrapper: RecordWrapperType of CreateTrainingJob.
        is_shuffled: True if the channel has a ShuffleConfig.
        instance_groups: Instance groups that get the channel; () for all groups. An element that
            is None is a pipeline variable.
        other: Names of further fields, which have no meaning for a local job.
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
        """Return the path of the channel's data on this machine; None if the data is elsewhere."""
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
    """Return the channel in an element of CreateTrainingJob's InputDataConfig.

    Args:
        name: Name of the channel.
        part: Element of InputDataConfig.
        mode: Input mode of the job, for channels without an input mode.
        file_systems: Directories of this machine where file systems are mounted, by FileSystemId.
    """
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
    """Yield a fault for each channel whose name SageMaker does not allow.

    The name also becomes the name of a directory.
    """
    for channel in channels:
        if not _NAME.fullmatch(channel.name) or channel.name in {".", ".."}:
            yield OptionError(
                f"a channel is named {channel.name!r}",
                "a name consists of 1 to 64 letters, digits, '.', '-' and '_'",
                "Rename the channel",
                about=("inputs", channel.name),
            )


def channel_faults(
    channels: Iterable[Channel], *, on_this_machine: bool, instance_type: str = "local_process"
) -> Iterator[OptionError]:
    """Yield a fault for each channel that the job cannot read.

    Args:
        channels: Input channels of the job.
        on_this_machine: True for a local job, False for a job on SageMaker.
        instance_type: Instance type of a local job, for messages.
    """
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
            f"{here} reads only data with a file:// or s3:// URI",
            "Pass such a URI, or a TrainingInput with it",
            kind="unsupported",
        )
    yield from _value_faults(channel)
    if channel.data_type not in (None, "S3Prefix"):
        yield OptionError(
            f"s3_data_type of channel {channel.name!r} is {channel.data_type!r}",
            f"{here} reads all objects below a prefix, but no manifests",
            "Pass a prefix as the URI, and leave s3_data_type out",
            about="s3_data_type",
            kind="unsupported",
        )
    if channel.record_wrapper not in (None, "None"):
        yield OptionError(
            f"record_wrapping of channel {channel.name!r} is {channel.record_wrapper!r}",
            f"{here} does not wrap records: the script gets the objects unchanged",
            "Store the objects as RecordIO, and leave record_wrapping out",
            about="record_wrapping",
            kind="unsupported",
        )
    yield from _pipe_only_faults(channel)
    for part in channel.other:
        yield OptionError(
            f"{_spelling(part)} of channel {channel.name!r} is set",
            f"it has no meaning on {here}",
            "Leave it out",
            about=_spelling(part),
            kind="no_effect",
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
                kind="unknown",
            )


def _pipe_only_faults(channel: Channel) -> Iterator[OptionError]:
    if channel.mode == "Pipe":
        return
    if channel.compression == "Gzip":
        yield OptionError(
            f"compression of channel {channel.name!r} is 'Gzip'",
            "data is decompressed only in Pipe mode, as on SageMaker",
            "Leave compression out and decompress in the script, or pass input_mode='Pipe'",
            about="compression",
            kind="conflict",
        )
    if channel.is_shuffled:
        yield OptionError(
            f"shuffle_config of channel {channel.name!r} is set",
            "objects are shuffled only in Pipe mode",
            "Leave shuffle_config out and shuffle in the script, or pass input_mode='Pipe'",
            about="shuffle_config",
            kind="conflict",
        )


def _pipe_faults(channels: list[Channel]) -> Iterator[OptionError]:
    for pipe in (channel for channel in channels if channel.mode == "Pipe"):
        fifo = re.compile(re.escape(pipe.name) + r"_\d+")
        for other in (each.name for each in channels if fifo.fullmatch(each.name)):
            yield OptionError(
                f"a channel is named {other!r}",
                f"Pipe mode creates a FIFO of the same name for channel {pipe.name!r}",
                "Rename one of the two channels",
                about=("inputs", other),
                kind="conflict",
            )


def mount_faults(channel: Channel) -> Iterator[OptionError]:
    """Yield a fault if a channel in a file system has a streaming input mode, FastFile or Pipe."""
    if channel.mode in ("FastFile", "Pipe"):
        yield OptionError(
            f"input_mode of channel {channel.name!r} is {channel.mode!r}",
            "SageMaker mounts file systems only in File mode",
            "Pass input_mode='File'",
            about="input_mode",
            kind="unsupported",
        )


def _file_system_faults(channel: Channel, place: FileSystem, here: str) -> Iterator[OptionError]:
    what = f"channel {channel.name!r} reads {place.directory!r} of file system {place.id!r}"
    yield from mount_faults(channel)
    if ".." in PurePosixPath(place.directory).parts:
        yield OptionError(
            what,
            "'..' is not allowed in the path",
            "Pass the path from the file system's root",
            kind="outside",
        )
    elif place.here is None:
        yield OptionError(
            what,
            f"{here} needs the directory of this machine where the file system is mounted",
            f"Pass sagemaker_session=LocalSession(file_systems={{{place.id!r}: '/its/directory'}}),"
            " or the directory as file://",
            kind="missing",
        )
    elif not place.here.startswith("/"):
        yield OptionError(
            what,
            f"the path of this file system in file_systems is {place.here!r}, which is relative",
            "Pass an absolute path in file_systems",
            kind="relative",
        )
    elif not channel.exists:
        yield OptionError(
            what,
            f"{place.path} does not exist",
            "Create the directory, or correct the path in file_systems",
            kind="missing_file",
        )


def _uri_faults(channel: Channel, on_this_machine: bool) -> Iterator[OptionError]:
    what, uri = f"channel {channel.name!r} is {channel.uri!r}", str(channel.uri)
    scheme, meant = scheme_of(uri), corrected_s3_uri(uri)
    if meant is not None:
        yield OptionError(
            what, f"an S3 URI begins with {S3}", f"Did you mean {meant!r}?", kind="unknown"
        )
    elif not scheme:
        hint = "Path(...).absolute().as_uri()" if on_this_machine else f"{S3} and a prefix"
        why = "a path without a scheme may be of this machine or of S3"
        yield OptionError(what, why, f"Pass {hint}", kind="ambiguous")
    elif scheme == "s3":
        if not uri.removeprefix(S3).partition("/")[0]:
            hint = f"Pass {S3} followed by a bucket and a prefix"
            yield OptionError(what, "the URI has no bucket", hint, kind="incomplete")
    elif scheme != "file":
        s3 = f"an {S3} URI"
        known = f"a {FILE} URI of a directory, or {s3}" if on_this_machine else s3
        yield OptionError(
            what, f"the scheme {scheme}:// is not supported", f"Pass {known}", kind="unsupported"
        )
    elif not on_this_machine:
        yield OptionError(
            what,
            "an instance of SageMaker cannot read the disk of this machine",
            "Upload the data to S3 and pass its s3:// URI, or use instance_type='local_process'",
            kind="unsupported",
        )
    elif not directory_of(uri).startswith("/"):
        hint = "Pass Path(...).absolute().as_uri()"
        yield OptionError(what, "a file:// URI needs an absolute path", hint, kind="relative")
    elif not channel.exists:
        hint = "Create the directory, or correct the path"
        yield OptionError(what, f"{directory_of(uri)} does not exist", hint, kind="missing_file")


def _spelling(part: str) -> str:
    return _SPELLINGS.get(part, re.sub(r"(?<!^)(?=[A-Z])", "_", part).lower())
