# SPDX-License-Identifier: Apache-2.0
r"""Extraction of an error's own message from the text that TensorFlow and Keras wrap around it.

Graph execution error:                                         <- wrapping

Detected at node Gather defined at (most recent call last):    <- wrapping
  File "/opt/ml/code/train.py", line 8, in <module>            <- wrapping
indices[12,2] = 5000 is not in [0, 100)                        <- message
     [[{{node Gather}}]] [Op:__inference_step_1003]            <- wrapping
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_MOST_LINES: Final = 3
_WRAPPED: Final = re.compile(
    r"Graph execution error:|\{\{(?:function_)?node |\[Op:|^in user code:|^\w*: in user code:"
    r"|Exception encountered when calling "
)
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_AROUND: Final = re.compile(
    r"^\s+\[\[.*\]\]|\{\{(?:function_)?node [^}]*\}\}|\[Op:[^\]]*\](?:\s*name:.*)?"
    r"|^\s*\(0\) [A-Z_]+:"
)
_WHOLE: Final = re.compile(
    r"Graph execution error:|Detected at node .*|Node: '.*'|<stack traces unavailable>"
    r"|in user code:|\d+ root error\(s\) found\.|smdist: .*"
)
_END: Final = re.compile(
    r"\s*(?:Traceback \(most recent call last\):|\(1\) [A-Z_]+:|\d+ successful operations"
    r"|Arguments received by )"
)
_HEADING: Final = re.compile(
    r"(?:First \d+ elements of .+|Indices of first \d+ different values|Corresponding . values):\s*"
    r"|\S+ \(shape=.*\) = *"
)
_FRAME: Final = re.compile(r'(\s*)File "[^"]+", line \d+')


def is_wrapped(text: str) -> bool:
    """Return whether TensorFlow or Keras wrapped the message of this exception."""
    return bool(_WRAPPED.search(text))


def plain(text: str) -> str:
    """Return the message without the wrapping, at most three lines; any other text unchanged."""
    if not is_wrapped(text):
        return text
    lines = []
    for line in _spoken(with_values_beside(text.splitlines())):
        lines.append(line)
        if len(lines) == _MOST_LINES:
            break
    return "\n".join(lines) or text.strip()


def with_values_beside(lines: Iterable[str]) -> list[str]:
    """Join the headings of a TensorFlow assertion with the values printed below them.

    Corresponding x values:         Corresponding x values: [[1 3] [2 4]]
    [[1 3]
     [2 4]]
    """
    joined: list[str] = []
    is_value = is_below = False
    for line in lines:
        is_value = bool(line.strip()) and (is_below or (is_value and line.startswith(" ")))
        is_below = not is_value and bool(_HEADING.fullmatch(line))
        if is_value:
            joined[-1] = f"{joined[-1].rstrip()} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _spoken(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not empty, not a stack trace and not names of operations."""
    has_spoken, frame = False, -1
    for line in lines:
        if has_spoken and _END.match(line):
            return
        is_source = 0 <= frame < len(line) - len(line.lstrip())
        match = _FRAME.match(line)
        frame = len(match[1]) if match else -1
        bare = _AROUND.sub("", _COLOUR.sub("", line)).strip()
        if not match and not is_source and bare and not _WHOLE.fullmatch(bare):
            has_spoken = True
            yield bare
        if has_spoken and "[Op:" in line:
            return
