# SPDX-License-Identifier: Apache-2.0
"""Display of a running job: its output, its progress, and how it ended.

terminal   lines in the colour of their host; below them two lines: the newest progress bar, and
           the state of the job
notebook   the same lines and colours, without the two lines below
pipe       lines without colours; of each progress bar only the last state
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from sagemaker_dist.runners.protocol import (
    LOST_LOG_BYTES,
    MAX_LOG_BYTES,
    NO_MODEL,
    TERMINAL,
    Description,
    Runner,
)

_PREFIX: Final = re.compile(r"\[(algo-(\d+)[^\]]*)\] ?")
_COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_red")
_DESCRIBE_SECONDS: Final = 0.1
_DONE: Final = {"Completed": "green", "Failed": "red", "Stopped": "yellow"}


class Screen(Protocol):
    """Output device that shows a job: a terminal, a notebook or a pipe."""

    def line(self, text: str) -> None:
        """Show a line of output, which stays on the screen."""
        ...

    def progress(self, text: str) -> None:
        """Show one state of a progress bar; the next state from the same rank replaces it."""
        ...

    def status(self, clock: str, doing: str) -> None:
        """Show the state of the job; called about 10 times a second.

        `clock` is the elapsed time as text, `doing` the job's secondary status, such as "Training".
        """
        ...


def watch(
    runner: Runner, name: str, *, layout: str = "", output: bool = True, new_only: bool = False
) -> Description:
    """Show a job on the screen until it ends, and return its last description.

    Args:
        runner: Runner that has the job.
        name: Name of the job.
        layout: Text for the heading, such as "2 hosts x 4 ranks".
        output: True to show the output of the hosts, False to show only the state of the job.
        new_only: True to leave out the output before this call.
    """
    description = runner.describe(name)
    heading = f"{name}  {layout}".rstrip()
    describe_at_seconds, has_model = 0.0, True
    with _screen(layout) as screen:
        if not new_only:
            screen.line(heading)
        for segment in runner.logs(name, follow=True, new_only=new_only):
            has_model = has_model and not segment.startswith(NO_MODEL)
            if segment and output:
                _show(screen, segment)
            if monotonic() >= describe_at_seconds:  # not at every line: it reads files or calls AWS
                description = runner.describe(name)
                screen.status(_clock(description), description["SecondaryStatus"])
                describe_at_seconds = monotonic() + _DESCRIBE_SECONDS
    description = runner.describe(name)
    if lost := description.get(LOST_LOG_BYTES):
        why = f"the disk was full, or a host wrote more than {MAX_LOG_BYTES:,} bytes"
        text = f"the logs lack {lost:,} bytes of the hosts' output: {why}"
        _console().print(text, style="yellow", highlight=False, soft_wrap=True)
    model = description.get("ModelArtifacts", {}).get(
        "S3ModelArtifacts"
    )  # absent if there is no model
    result = f"model: {model}" if has_model and model else "no model was saved"
    _console().print(_ending(description, runner.logs_at(name), result), soft_wrap=True)
    return description


def _show(screen: Screen, segment: str) -> None:
    text = segment.rstrip("\r\n")
    if segment.endswith("\r"):
        if _PREFIX.sub("", text, count=1).strip():
            screen.progress(text)
    else:
        screen.line(text)


@contextmanager
def _screen(layout: str) -> Iterator[Screen]:
    console = _console()
    if not console.is_terminal:
        yield _Plain(console)
        return
    if _in_notebook():
        yield _Notebook(console)
        return
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        yield _Terminal(live, layout)


@dataclass
class _Plain:
    """Output to a pipe: plain lines, and only the last state of each progress bar.

    Attributes:
        bars: Rank that printed a progress bar, such as "algo-1 rank 0" -> state of the bar.
        doing: Secondary status that was printed last.
    """

    console: Console
    bars: dict[str, str] = field(default_factory=dict)
    doing: str = ""

    def line(self, text: str) -> None:
        source = _source(text)
        bar = self.bars.pop(source, "")
        is_blank = not _PREFIX.sub("", text, count=1).strip()
        self._print(bar if bar and is_blank else text)

    def progress(self, text: str) -> None:
        self.bars[_source(text)] = text

    def status(self, clock: str, doing: str) -> None:
        if doing not in {self.doing, *_DONE}:  # the end has a line of its own
            self._print(f"{clock}  {doing}")
        self.doing = doing

    def _print(self, text: str) -> None:
        self.console.file.write(text + "\n")
        self.console.file.flush()


@dataclass
class _Notebook(_Plain):
    """Screen for a notebook: the same lines as for a pipe, but in the colours of the hosts."""

    def _print(self, text: str) -> None:
        self.console.print(_coloured(text), soft_wrap=True)


@dataclass
class _Terminal:
    """Screen for a terminal: lines scroll above the newest progress bar and a status line."""

    live: Live
    layout: str
    bars: dict[str, Text] = field(default_factory=dict)
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))

    def line(self, text: str) -> None:
        bar = self.bars.pop(_source(text), None)
        is_blank = not _PREFIX.sub("", text, count=1).strip()
        self.live.console.print(bar if bar and is_blank else _coloured(text), soft_wrap=True)

    def progress(self, text: str) -> None:
        self.bars.pop(_source(text), None)
        self.bars[_source(text)] = _coloured(text)

    def status(self, clock: str, doing: str) -> None:
        text = f"{clock}  {doing}  {self.layout}"
        self.spinner.update(text=Text(text, style="dim", overflow="ellipsis", no_wrap=True))
        newest = list(self.bars.values())[-1:]
        self.live.update(Group(*newest, self.spinner))


def _console() -> Console:
    return Console(
        file=sys.stdout,
        highlight=False,
        force_terminal=True if _in_notebook() else None,
        force_jupyter=False,
    )


def _in_notebook() -> bool:
    return type(sys.stdout).__module__.startswith("ipykernel")


def _source(text: str) -> str:
    match = _PREFIX.match(text)
    return match[1] if match else ""


def _coloured(text: str) -> Text:
    line = Text.from_ansi(text)
    line.no_wrap, line.overflow = True, "ignore"
    match = _PREFIX.match(line.plain)
    if match:
        line.stylize(_COLOURS[(int(match[2]) - 1) % len(_COLOURS)], 0, match.end(1) + 1)
    return line


def _clock(description: Description) -> str:
    end = description.get("TrainingEndTime")  # absent if the job failed before training
    if end is None and description["TrainingJobStatus"] in TERMINAL:
        end = description.get("LastModifiedTime")
    seconds = (end.timestamp() if end else time()) - description["CreationTime"].timestamp()
    minutes, seconds = divmod(
        max(0, round(seconds)), 60
    )  # not negative if this machine's clock is late
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def _ending(description: Description, logs_at: str, result: str) -> Text:
    status = description["TrainingJobStatus"]
    assert status in TERMINAL, "the job has ended when its logs end"
    what = f"logs: {logs_at}" if status == "Failed" else result
    return Text.assemble((status, f"bold {_DONE[status]}"), f" after {_clock(description)}, {what}")
