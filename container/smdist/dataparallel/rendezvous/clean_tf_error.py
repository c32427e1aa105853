# SPDX-License-Identifier: Apache-2.0
r"""Extraction of an error's message from the text that TensorFlow and Keras add around it.

Graph execution error:                                         <- added

Detected at node Gather defined at (most recent call last):    <- added
  File "/opt/ml/code/train.py", line 8, in <module>            <- added
indices[12,2] = 5000 is not in [0, 100)                        <- message
     [[{{node Gather}}]] [Op:__inference_step_1003]            <- added
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
_WRAPPING_IN_LINE: Final = re.compile(
    r"^\s+\[\[.*\]\]|\{\{(?:function_)?node [^}]*\}\}|\[Op:[^\]]*\](?:\s*name:.*)?"
    r"|^\s*\(0\) [A-Z_]+:"
)
_WRAPPING_LINE: Final = re.compile(
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
    """Return True if the text of an exception has parts that TensorFlow or Keras added."""
    return bool(_WRAPPED.search(text))


def unwrap_message(text: str) -> str:
    """Return at most three lines: an error's message without the text that TensorFlow adds to it.

    Added text is, for example, a stack trace or the name of an operation. Return `text` unchanged
    if neither TensorFlow nor Keras has added any.
    """
    if not is_wrapped(text):
        return text
    lines = []
    for line in _message_lines(join_assertion_values(text.splitlines())):
        lines.append(line)
        if len(lines) == _MOST_LINES:
            break
    return "\n".join(lines) or text.strip()


def join_assertion_values(lines: Iterable[str]) -> list[str]:
    """Return the lines of an error, with the values of assertions moved to their heading's line.

    TensorFlow's assertions print a heading and, on the lines below it, values. Example:

        three lines of `lines`       one line of the result

        Corresponding x values:      Corresponding x values: [[1 3] [2 4]]
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


def _message_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an error text that belong to the error's own message.

    Lines that TensorFlow or Keras added, such as stack traces, are left out. So are empty lines.
    Names of operations are removed from the other lines.
    """
    has_begun, frame = False, -1
    for line in lines:
        if has_begun and _END.match(line):
            return
        is_source = 0 <= frame < len(line) - len(line.lstrip())
        match = _FRAME.match(line)
        frame = len(match[1]) if match else -1
        bare = _WRAPPING_IN_LINE.sub("", _COLOUR.sub("", line)).strip()
        if not match and not is_source and bare and not _WRAPPING_LINE.fullmatch(bare):
            has_begun = True
            yield bare
        if has_begun and "[Op:" in line:
            return
