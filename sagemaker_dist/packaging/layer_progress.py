# SPDX-License-Identifier: Apache-2.0
"""Display of a push on standard error: progress bars on a terminal, else one line per layer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

_FINAL: Final = ("Pushed", "Layer already exists", "Mounted from")
Message = Mapping[str, Any]


def show(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield Docker's messages about an image's push unchanged, and show them on standard error."""
    console = Console(file=sys.stderr, highlight=False)
    return _bars(messages, console) if console.is_terminal else _lines(messages)


def _lines(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        if message.get("status", "").startswith(_FINAL):
            sys.stderr.write(f"{message.get('id', '')}: {message['status']}\n")
            sys.stderr.flush()
        yield message


def _bars(messages: Iterable[Message], console: Console) -> Iterator[Message]:
    columns = (TextColumn("{task.fields[layer]}"), BarColumn(), DownloadColumn())
    status = TextColumn("{task.description}")
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, status, console=console) as progress:
        for message in messages:
            layer, done = message.get("id"), message.get("progressDetail") or {}
            if layer and layer not in tasks:
                tasks[layer] = progress.add_task("", total=None, layer=layer)
            if layer:
                size = {"completed": done["current"]} if "current" in done else {}
                total = {"total": done["total"]} if "total" in done else {}
                status_text = message.get("status", "")
                progress.update(tasks[layer], description=status_text, **size, **total)
                if status_text.startswith(_FINAL):
                    _finish(progress, tasks[layer])
            yield message


def _finish(progress: Progress, task: TaskID) -> None:
    size = progress.tasks[task].total or 1
    progress.update(task, total=size, completed=size)
