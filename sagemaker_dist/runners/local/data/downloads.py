# SPDX-License-Identifier: Apache-2.0
"""Brings data into the folder of a job: a process of its own, so that it can be killed.

It says how far it has come, and last of all what went wrong, in lines of JSON
on its output. Credentials and endpoints are found as boto3 finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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
from sagemaker_dist.runners.local.data.layout import Item, lay_out, part_of
from sagemaker_dist.runners.local.data.places import channel_directory
from sagemaker_dist.runners.local.data.refusals import channel_words, refusal, refused
from sagemaker_dist.runners.local.data.walk import files_below
from sagemaker_dist.runners.local.folder import JobFolder

_SAY_SECONDS: Final = 3.0
_MAX_PENDING: Final = 1000
_BROKEN: Final = (BotoCoreError, ClientError, OSError, RetriesExceededError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One object and where it goes."""

    channel: LocalChannel
    item: Item
    target: Path


@dataclass(slots=True)
class Progress:
    """How far it has come. Thread safety: any thread may call it."""

    num_objects: int
    num_bytes: int
    done_objects: int = 0
    done_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, objects: int, num_bytes: int) -> None:
        """Count what has arrived; bytes are negative where a part is fetched again."""
        with self._lock:
            self.done_objects += objects
            self.done_bytes += num_bytes

    def __str__(self) -> str:
        size = f"{in_words(self.done_bytes)} of {in_words(self.num_bytes)}"
        return f"brought {self.done_objects} of {_count(self.num_objects)}, {size}"


class _Counter(ProgressCallbackInvoker):  # type: ignore[misc]  # boto3 is untyped
    """Tells the progress of one object, as boto3's transfers want it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(lambda num_bytes: progress.add(0, num_bytes))
        self._progress = progress

    def on_done(self, **_: object) -> None:
        """Called by boto3 once the object is there."""
        self._progress.add(1, 0)


@dataclass
class Download:
    """All data of one job that has to be brought."""

    folder: JobFolder
    job: LocalJob
    say: Callable[[str], None]

    @cached_property
    def client(self) -> Any:
        """One client for all channels; its credentials are looked up once."""
        return boto3.client("s3")

    def run(self) -> None:
        """Look for all objects, then bring them.

        Raises:
            JobError: Something is missing or refused; all channels are looked at first.
        """
        wanted: list[Wanted] = []
        faults: list[JobError] = []
        for channel in self.job.channels:
            if channel.is_fetched:
                try:
                    wanted += self._find(channel)
                except JobError as fault:
                    faults.append(fault)
        if faults:
            raise faults[0] if len(faults) == 1 else _together(faults)
        self._check_space(sum(each.item.num_bytes for each in wanted))
        self._bring(wanted)

    def _find(self, channel: LocalChannel) -> list[Wanted]:
        items = self._items(channel)
        size = in_words(sum(item.num_bytes for item in items))
        how = "copying" if channel.path else "downloading"
        self.say(f"{how} {channel_words(channel)}: {_count(len(items))}, {size}")
        if not channel.is_split:
            return self._place(channel, self.job.hosts[0], items)
        hosts = self.job.hosts
        return [
            wanted
            for index, host in enumerate(hosts)
            for wanted in self._place(channel, host, part_of(items, index, len(hosts)))
        ]

    def _place(self, channel: LocalChannel, host: LocalHost, items: list[Item]) -> list[Wanted]:
        directory = channel_directory(self.folder, channel, host)
        with _named(channel):
            directory.mkdir(parents=True, exist_ok=True)  # a host's part may be empty
        return [Wanted(channel=channel, item=item, target=directory / item.name) for item in items]

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
        return lay_out(refused(channel), prefix, objects)

    def _check_space(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.folder.path).free
        if num_bytes > free:
            raise JobError(
                "the data of the job cannot be brought",
                f"it has {in_words(num_bytes)}, and the disk of {self.folder.path} has"
                f" {in_words(free)} left",
                "Make room, or run jobs on another disk: LocalRunner(root=...)",
            )

    def _bring(self, wanted: list[Wanted]) -> None:
        began = time.monotonic()
        progress = Progress(len(wanted), sum(each.item.num_bytes for each in wanted))
        with self._telling(progress):
            self._transfer([each for each in wanted if not each.channel.path], progress)
            _copy([each for each in wanted if each.channel.path], progress)
        self.say(f"{progress}, in {time.monotonic() - began:.1f} s")

    def _transfer(self, wanted: list[Wanted], progress: Progress) -> None:
        if not wanted:
            return
        pending: deque[tuple[Wanted, Any]] = deque()

        def settle() -> None:
            each, future = pending.popleft()
            with _named(each.channel):
                future.result()

        config = TransferConfig(preferred_transfer_client="classic")
        with create_transfer_manager(self.client, config) as manager:  # an error cancels the rest
            for each in wanted:
                with _named(each.channel):
                    each.target.parent.mkdir(parents=True, exist_ok=True)
                bucket = each.channel.uri.removeprefix(S3).partition("/")[0]
                place = (bucket, each.item.key, str(each.target))
                pending.append((each, manager.download(*place, subscribers=[_Counter(progress)])))
                if len(pending) == _MAX_PENDING:
                    settle()
            while pending:
                settle()

    @contextmanager
    def _telling(self, progress: Progress) -> Iterator[None]:
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_SAY_SECONDS):
                self.say(str(progress))

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


def _copy(wanted: list[Wanted], progress: Progress) -> None:
    for each in wanted:
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
    return JobError(first.what, first.why, " ".join([f"{first.mend}.", *map(str, rest)])[:-1])


def _count(objects: int) -> str:
    return f"{objects} object" if objects == 1 else f"{objects} objects"


def in_words(num_bytes: int) -> str:
    """A size as people read it: 1.5 MB."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.1f} {unit}" if unit != "bytes" else f"{num_bytes} bytes"
        size /= 1000
    return f"{size:.1f} TB"


def main() -> None:
    """Bring the data of the job whose folder is named on the command line."""
    parser = argparse.ArgumentParser(description="Brings the data of one job of sagemaker_dist.")
    parser.add_argument("folder", type=Path)
    folder = JobFolder(parser.parse_args().folder)
    lock = threading.Lock()

    def write(**message: object) -> None:
        with lock:
            print(json.dumps(message), flush=True)  # noqa: T201 - the supervisor reads it

    try:
        Download(folder, folder.job(), lambda text: write(say=text)).run()
    except DistError as fault:
        write(fault=fault.args)
        os._exit(1)  # what hangs in a thread holds up nobody


if __name__ == "__main__":
    main()
