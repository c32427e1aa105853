# SPDX-License-Identifier: Apache-2.0
"""What commands print: tables and lines for people, JSON for programs.

A terminal gets its own width and colours, a notebook 100 columns and colours, a pipe
neither colours nor cut cells. NO_COLOR is kept by rich.
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
_LONGEST: Final = 24  # of names that others line up with
_NARROWEST: Final = 20


def console(width: int | None = None) -> Console:
    """Standard output as it is now, or as wide as is said."""
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
    """One line, which the terminal wraps; brackets in a str are no markup."""
    console().print(Text(text) if isinstance(text, str) else text, soft_wrap=True)


def print_json(document: Any, *, is_sorted: bool = False) -> None:
    """What a program reads; times as text."""
    text = json.dumps(document, indent=2, default=str, sort_keys=is_sorted)
    sys.stdout.write(f"{text}\n")


def heading(text: str) -> None:
    """What the next lines are about."""
    line(Text(text, style="bold"))


def facts(rows: Mapping[str, str] | Iterable[tuple[str, str]], *, indent: int = 0) -> None:
    """Names and values; long values go on below themselves, and no word is broken."""
    pairs = list(rows.items() if isinstance(rows, Mapping) else rows)
    widest = max([_LABEL - 2, *(len(name) for name, _ in pairs if len(name) <= _LONGEST)])
    for name, value in pairs:
        label = f"{' ' * indent}{name:<{widest}}  "
        for number, part in enumerate(wrapped(value, indent + widest + 2)):
            line(Text.assemble((" " * len(label) if number else label, "dim"), part))


def paragraph(text: str, *, indent: int = 0, style: str = "") -> None:
    """Words as wide as the terminal."""
    for part in wrapped(text, indent):
        line(Text(" " * indent + part, style=style))


def wrapped(text: str, taken: int) -> list[str]:
    """The lines of a text, where so many columns are taken; a name that is longer stays whole."""
    width = max(_NARROWEST, console().width - taken)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def plain_facts(rows: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
    """The same, each on one line, whole: values that are copied, such as names of images."""
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        if value:
            line(Text.assemble((f"{name:<{_LABEL}}", "dim"), value))


def show(renderable: Any, *, width: int | None = None) -> None:
    """A table as wide as the terminal, or wider; lines end with their last letter."""
    terminal = console(width)
    with terminal.capture() as captured:
        terminal.print(renderable)
    for each in captured.get().splitlines():
        terminal.file.write(each.rstrip() + "\n")
    terminal.file.flush()


def note(text: str) -> None:
    """Something to know, on standard error, so that --json stays JSON."""
    Console(file=sys.stderr, highlight=False).print(Text(f"note: {text}"), soft_wrap=True)
