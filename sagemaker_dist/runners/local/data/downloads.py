# SPDX-License-Identifier: Apache-2.0
"""Copy or download of a job's data, in a process of its own, so that it can be killed.

The process writes lines of JSON to its standard output: {"log": text} for progress, and
{"fault": [what, why, hint, about, kind]} if it fails. It uses boto3's own search for credentials
and endpoints, with the environment variables that it reads from its standard input as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import boto3
from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import RetriesExceededError

from sagemaker_dist.errors import DistError, JobError
from sagemaker_dist.planning import LocalChannel, LocalHost, LocalJob
from sagemaker_dist.planning.locations import S3
from sagemaker_dist.runners.local.data.channel_layout import Item, files_below, lay_out, part_of
from sagemaker_dist.runners.local.data.data_errors import (
    describe_channel,
    path_of,
    refusal,
    refused,
)
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.private_input import take_input
from sagemaker_dist.runners.local.process_tree import hide_memory

_LOG_SECONDS: Final = 3.0
_MAX_PENDING: Final = 1000
_BROKEN: Final = (BotoCoreError, ClientError, OSError, RetriesExceededError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One object to copy, and the path that it is copied to."""

    channel: LocalChannel
    item: Item
    target: Path


@dataclass(slots=True)
class Progress:
    """Number of objects and bytes copied so far, and their totals; any thread may add to it."""

    num_objects: int
    num_bytes: int
    done_objects: int = 0
    done_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, objects: int, num_bytes: int) -> None:
        """Add a number of copied objects and a number of copied bytes.

        `num_bytes` is negative if a part is downloaded again.
        """
        with self._lock:
            self.done_objects += objects
            self.done_bytes += num_bytes

    def __str__(self) -> str:
        size = f"{format_bytes(self.done_bytes)} of {format_bytes(self.num_bytes)}"
        return f"copied {self.done_objects} of {_count(self.num_objects)}, {size}"


class _Counter(ProgressCallbackInvoker):  # type: ignore[misc]  # boto3 is untyped
    """Callback of boto3's transfer manager, which adds the bytes of one object to the progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(lambda num_bytes: progress.add(0, num_bytes))
        self._progress = progress

    def on_done(self, **_: object) -> None:
        """Add one object to the progress; boto3 calls this when the object is complete."""
        self._progress.add(1, 0)


@dataclass
class Download:
    """Operation that copies or downloads the data that a job's hosts need before they start.

    Attributes:
        log: Function that receives lines about the progress.
    """

    folder: JobFolder
    job: LocalJob
    log: Callable[[str], None]

    @cached_property
    def client(self) -> Any:
        """S3 client for all channels, so that credentials are looked up once."""
        return boto3.client("s3")

    def run(self) -> None:
        """List the objects of all channels, then copy them into the job's folder.

        Raises:
            JobError: Data is missing, access is denied, or the disk is too small. Faults of all
                channels are reported together.
        """
        transfers: list[Transfer] = []
        faults: list[JobError] = []
        for channel in self.job.channels:
            if channel.is_fetched:
                try:
                    transfers += self._find(channel)
                except JobError as fault:
                    faults.append(fault)
        if faults:
            raise faults[0] if len(faults) == 1 else _together(faults)
        self._check_space(sum(each.item.num_bytes for each in transfers))
        self._copy_all(transfers)

    def _find(self, channel: LocalChannel) -> list[Transfer]:
        items = self._items(channel)
        size = format_bytes(sum(item.num_bytes for item in items))
        how = "copying" if channel.path else "downloading"
        self.log(f"{how} {describe_channel(channel)}: {_count(len(items))}, {size}")
        if not channel.is_split:
            return self._place(channel, self.job.hosts[0], items)
        hosts = self.job.hosts
        return [
            transfers
            for index, host in enumerate(hosts)
            for transfers in self._place(channel, host, part_of(items, index, len(hosts)))
        ]

    def _place(self, channel: LocalChannel, host: LocalHost, items: list[Item]) -> list[Transfer]:
        directory = self.folder.channel(channel, host)
        with _named(channel):
            directory.mkdir(parents=True, exist_ok=True)  # also for a host without objects
        return [
            Transfer(channel=channel, item=item, target=directory / item.name) for item in items
        ]

    def _items(self, channel: LocalChannel) -> list[Item]:
        with _named(channel):
            if channel.path:
                return [
                    Item(key=str(path), name=name, num_bytes=path.stat().st_size)
                    for name, path in files_below(Path(channel.path))
                ]
            bucket, _, prefix = channel.uri.removeprefix(S3).partition("/")
            pages = self.client.get_paginator("list_objects_v2")
            objects = [
                (each["Key"], each["Size"])
                for page in pages.paginate(Bucket=bucket, Prefix=prefix)
                for each in page.get("Contents", [])
            ]
        return lay_out(refused(channel), prefix, objects, path_of(channel))

    def _check_space(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.folder.path).free
        if num_bytes > free:
            raise JobError(
                "the data of the job cannot be downloaded",
                f"it has {format_bytes(num_bytes)}, and the disk of {self.folder.path} has"
                f" {format_bytes(free)} left",
                "Free space, or run jobs on another disk: LocalRunner(root=...)",
                kind="disk_full",
            )

    def _copy_all(self, transfers: list[Transfer]) -> None:
        began = time.monotonic()
        progress = Progress(len(transfers), sum(each.item.num_bytes for each in transfers))
        with self._reporting(progress):
            self._transfer([each for each in transfers if not each.channel.path], progress)
            _copy([each for each in transfers if each.channel.path], progress)
        self.log(f"{progress}, in {time.monotonic() - began:.1f} s")

    def _transfer(self, transfers: list[Transfer], progress: Progress) -> None:
        if not transfers:
            return
        pending: deque[tuple[Transfer, Any]] = deque()

        def finish_oldest() -> None:
            each, future = pending.popleft()
            with _named(each.channel):
                future.result()

        config = TransferConfig(preferred_transfer_client="classic")
        with create_transfer_manager(self.client, config) as manager:  # an error cancels all others
            for each in transfers:
                with _named(each.channel):
                    each.target.parent.mkdir(parents=True, exist_ok=True)
                bucket = each.channel.uri.removeprefix(S3).partition("/")[0]
                place = (bucket, each.item.key, str(each.target))
                pending.append((each, manager.download(*place, subscribers=[_Counter(progress)])))
                if len(pending) == _MAX_PENDING:
                    finish_oldest()
            while pending:
                finish_oldest()

    @contextmanager
    def _reporting(self, progress: Progress) -> Iterator[None]:
        over = threading.Event()

        def report() -> None:
            while not over.wait(_LOG_SECONDS):
                self.log(str(progress))

        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join()


def _copy(transfers: list[Transfer], progress: Progress) -> None:
    for each in transfers:
        with _named(each.channel):
            each.target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.item.key, each.target)
        progress.add(1, each.item.num_bytes)


@contextmanager
def _named(channel: LocalChannel) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise refusal(channel, error) from error


def _together(faults: list[JobError]) -> JobError:
    first, *rest = faults
    hint = " ".join([f"{first.hint}.", *map(str, rest)])[:-1]
    return JobError(first.what, first.why, hint, first.about, first.kind)


def _count(objects: int) -> str:
    return f"{objects} object" if objects == 1 else f"{objects} objects"


def format_bytes(num_bytes: int) -> str:
    """Return a size in decimal units, such as "1.5 MB"."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.1f} {unit}" if unit != "bytes" else f"{num_bytes} bytes"
        size /= 1000
    return f"{size:.1f} TB"


def _use_environment(given: Mapping[str, str]) -> None:
    """Set environment variables of this process; an empty value removes the variable."""
    for name, value in given.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def main() -> None:
    """Copy the data of the job whose folder is given on the command line."""
    parser = argparse.ArgumentParser(description="Downloads the data of one job of sagemaker_dist.")
    parser.add_argument("folder", type=Path)
    folder = JobFolder(parser.parse_args().folder)
    hide_memory()
    _use_environment(json.loads(take_input()))
    lock = threading.Lock()

    def write(**message: object) -> None:
        with lock:
            print(json.dumps(message), flush=True)  # noqa: T201 - the supervisor reads it

    try:
        Download(folder, folder.job(), lambda text: write(log=text)).run()
    except DistError as fault:
        write(fault=[*fault.args, fault.about, fault.kind])
        os._exit(1)  # threads that wait for S3 must not delay the exit


if __name__ == "__main__":
    main()
