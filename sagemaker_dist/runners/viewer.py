# SPDX-License-Identifier: Apache-2.0
"""Display of a running job: its output, its progress, and its end.

terminal   lines in the colour of their host; at the bottom one line for the
           newest progress bar and one with the state of the job
notebook   the same lines and colours, without bottom lines
pipe       plain lines; of a progress bar only its last state
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

from sagemaker_dist.runners.protocol import NO_MODEL, TERMINAL, Description, Runner

_PREFIX: Final = re.compile(r"\[(algo-(\d+)[^\]]*)\] ?")
_COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_red")
_LOOK_SECONDS: Final = 0.1
_DONE: Final = {"Completed": "green", "Failed": "red", "Stopped": "yellow"}


class Screen(Protocol):
    """A place that shows a job."""

    def line(self, text: str) -> None:
        """Show a line permanently."""
        ...

    def progress(self, text: str) -> None:
        """Show a state that the next one replaces."""
        ...

    def status(self, clock: str, doing: str) -> None:
        """Show the state of the job, about ten times a second."""
        ...


def watch(
    runner: Runner, name: str, *, layout: str = "", output: bool = True, new_only: bool = False
) -> Description:
    """Show a job until it ends and return its description; with `new_only`, skip earlier output."""
    description = runner.describe(name)
    heading = f"{name}  {layout}".rstrip()
    look_at_seconds, has_model = 0.0, True
    with _screen(layout) as screen:
        if not new_only:
            screen.line(heading)
        for segment in runner.logs(name, follow=True, new_only=new_only):
            has_model = has_model and not segment.startswith(NO_MODEL)
            if segment and output:
                _show(screen, segment)
            if monotonic() >= look_at_seconds:  # not for every line, because it reads files
                description = runner.describe(name)
                screen.status(_clock(description), description["SecondaryStatus"])
                look_at_seconds = monotonic() + _LOOK_SECONDS
    description = runner.describe(name)
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
    """Screen for a pipe: the last state of a progress bar is printed with its line break."""

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
        if doing not in {self.doing, *_DONE}:  # the last line shows the end
            self._print(f"{clock}  {doing}")
        self.doing = doing

    def _print(self, text: str) -> None:
        self.console.file.write(text + "\n")
        self.console.file.flush()


@dataclass
class _Notebook(_Plain):
    """Screen for a notebook: with colours, without cursor movement."""

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
    minutes, seconds = divmod(max(0, round(seconds)), 60)  # this machine's clock may be behind
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def _ending(description: Description, logs_at: str, result: str) -> Text:
    status = description["TrainingJobStatus"]
    assert status in TERMINAL, "the job has ended when its logs end"
    what = f"logs: {logs_at}" if status == "Failed" else result
    return Text.assemble((status, f"bold {_DONE[status]}"), f" after {_clock(description)}, {what}")
