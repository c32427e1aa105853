# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables and lines for people, JSON for programs.

Output to a terminal is as wide as the terminal; it has colours unless NO_COLOR is set. Output to a
notebook is 100 columns wide and has colours. Output to a pipe has no colours, and its table cells
are not shortened.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

NOTEBOOK_WIDTH: Final = 100
_PIPE_WIDTH: Final = 80
_LABEL: Final = 14
_LONGEST: Final = 24  # columns; a name longer than this does not move the column of the values
_NARROWEST: Final = 20


def console(width: int | None = None) -> Console:
    """Return a rich console that writes to the current standard output.

    `width` is in columns. The default is the terminal's width, 100 in a notebook, 80 in a pipe.
    """
    in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
    if width is None and in_notebook:
        width = NOTEBOOK_WIDTH
    if width is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = _PIPE_WIDTH
    return Console(
        file=sys.stdout,
        highlight=False,
        width=width,
        force_terminal=True if in_notebook else None,
        force_jupyter=False,
    )


def line(text: str | Text = "") -> None:
    """Print a text as one line, which is not wrapped at the terminal's width.

    Brackets in a str are printed as they are; rich's markup is not interpreted.
    """
    console().print(Text(text) if isinstance(text, str) else text, soft_wrap=True)


def print_json(document: Any, *, is_sorted: bool = False) -> None:
    """Print a document as indented JSON, with sorted keys if `is_sorted`.

    Values that JSON lacks, such as times, become text.
    """
    text = json.dumps(document, indent=2, default=str, sort_keys=is_sorted)
    sys.stdout.write(f"{text}\n")


def heading(text: str) -> None:
    """Print a heading for the lines after it."""
    line(Text(text, style="bold"))


def facts(rows: Mapping[str, str] | Iterable[tuple[str, str]], *, indent: int = 0) -> None:
    """Print names and values in two columns; a long value is wrapped within its column.

    `indent` is the number of spaces before the names.
    """
    pairs = list(rows.items() if isinstance(rows, Mapping) else rows)
    widest = max([_LABEL - 2, *(len(name) for name, _ in pairs if len(name) <= _LONGEST)])
    for name, value in pairs:
        label = f"{' ' * indent}{name:<{widest}}  "
        for number, part in enumerate(wrapped(value, indent + widest + 2)):
            line(Text.assemble((" " * len(label) if number else label, "dim"), part))


def paragraph(text: str, *, indent: int = 0, style: str = "") -> None:
    """Print a text, wrapped at the terminal's width.

    `indent` is the number of spaces before each line; `style` is a style of rich, such as "dim".
    """
    for part in wrapped(text, indent):
        line(Text(" " * indent + part, style=style))


def wrapped(text: str, taken: int) -> list[str]:
    """Return the lines of a text that is wrapped to the console's width less `taken` columns.

    A word that is longer than a line is not broken.
    """
    width = max(_NARROWEST, console().width - taken)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def plain_facts(rows: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
    """Print names and values, each pair on one line that is not wrapped; skip empty values.

    Users can copy such values, for example image names.
    """
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        if value:
            line(Text.assemble((f"{name:<{_LABEL}}", "dim"), value))


def show(renderable: Any, *, width: int | None = None) -> None:
    """Print an object of the library Rich, such as a table; spaces at line ends are removed.

    `width` is the number of columns. None stands for the width of the terminal.
    """
    terminal = console(width)
    with terminal.capture() as captured:
        terminal.print(renderable)
    for each in captured.get().splitlines():
        terminal.file.write(each.rstrip() + "\n")
    terminal.file.flush()


def note(text: str) -> None:
    """Print a note to standard error, so that the output of --json stays valid JSON."""
    Console(file=sys.stderr, highlight=False).print(Text(f"note: {text}"), soft_wrap=True)
