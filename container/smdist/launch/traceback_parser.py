# SPDX-License-Identifier: Apache-2.0
r"""Parser that finds the error and its source line at the end of a rank's stderr.

    [rank3]: Traceback (most recent call last):
    [rank3]:   File "/opt/ml/code/train.py", line 12, in main      <- frame
    [rank3]:     loss.backward()
    [rank3]: ValueError: boom                                      <- error

torch puts `[rank3]: ` before each line once a process group exists. The frame is the innermost
one in the user's own code, or the innermost of all if none is in the user's code.

A TensorFlow exception has a message of many lines, which may contain whole tracebacks. These
have an empty line after their header; Python's own tracebacks have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from smdist.dataparallel.rendezvous.clean_tf_error import (
    is_wrapped,
    join_assertion_values,
    unwrap_message,
)

MAX_LINES: Final = 5
_GROUP_HEADER: Final = "+ Exception Group Traceback (most recent call last):"
_GROUP = re.compile(r"^\s+(?:\| ?|\+[-+ ]+)", re.MULTILINE)
_LEAF = re.compile(r"^\s+\+[-+]*-{4,} \d+ -{4,}\n", re.MULTILINE)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::\s|$)")
_HINTS: Final = {
    "No module named 'smdistributed": (
        "In this image the package is named smdist: write smdist instead of smdistributed"
        " in the script"
    ),
    "No module named 'horovod": (
        "Import smdist.dataparallel.torch.horovod, smdist.dataparallel.tensorflow or"
        " smdist.dataparallel.tensorflow.keras as hvd, or install the package"
        " sagemaker-dist-horovod, which gives them Horovod's names"
    ),
}
_NOISE = re.compile(
    r"^\[?(?:rank\d+\]:)?\[?[WEI]\d{4}\b|^\S+:\d+: \w*Warning\b|^smdist: "
    r"|^WARNING: All log messages before absl::|^To enable the following instructions: "
    r"|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [WEI] \S+:\d+\]"  # TensorFlow before 2.18
)
_WARNING: Final = re.compile(r"^\S.*:\d+: [\w.]*Warning: ")  # a source line follows, indented
_TENSORFLOW: Final = "tensorflow.python.framework.errors_impl."


def find_culprit(stderr: bytes, directory: str) -> tuple[str, str]:
    """Return (error, frame) of the last traceback, such as ("ValueError: boom", "a.py:12 in f").

    Without a traceback the error is the last line, such as one of argparse or the dynamic
    linker, and the frame is "". Warnings of Python do not count, nor the source lines below them.

    Args:
        stderr: End of a rank's stderr.
        directory: Directory of the user's code; frames in it are preferred.
    """
    text = _RANK.sub("", stderr.decode("utf-8", "replace"))
    lines = (_first_leaf(text) if _GROUP_HEADER in text else text).splitlines()
    start = next((n for n in reversed(range(len(lines))) if _is_start(lines, n)), -1)
    block = lines[start + 1 :]
    frames = {n: match for n, line in enumerate(block) if (match := _FRAME.match(line))}
    error = _error(block, frames) if frames else ""
    return _with_hint(error or _last_line(lines)), _frame([*frames.values()], directory)


def _with_hint(error: str) -> str:
    """Return the error text, with a hint added if the package smdistributed or horovod is missing.

    The hint names smdist's replacement for the package. Other errors are returned unchanged.
    """
    hints = (hint for part, hint in _HINTS.items() if part in error)
    return ". ".join([error, *hints])


def _first_leaf(text: str) -> str:
    """Return the traceback of an ExceptionGroup's first exception, from the group's traceback.

    The frame that Python draws around it with `|` and `+---` is removed.
    """
    before, *leaves = _LEAF.split(text[text.rindex(_GROUP_HEADER) :])
    return _GROUP.sub("", next((leaf for leaf in leaves if "Group Traceback" not in leaf), before))


def _is_start(lines: list[str], number: int) -> bool:
    if not lines[number].rstrip().endswith(_HEADER):
        return False
    return number + 1 == len(lines) or bool(lines[number + 1].strip())


def _error(block: list[str], frames: Iterable[int]) -> str:
    """Return the exception's type and message from a traceback's lines; "" if there is none.

    Args:
        block: Lines of the traceback.
        frames: Numbers of those lines that name a call.
    """
    named = [number for number, line in enumerate(block) if _EXCEPTION.match(line)]
    num_calls = next((number for number in named if is_wrapped(block[number])), len(block))
    last_frame = max((number for number in frames if number < num_calls), default=0)
    first = next((number for number in named if number > last_frame), None)
    return "" if first is None else _type_and_message(block[first:])


def _type_and_message(lines: list[str]) -> str:
    """Return "Type: message" from the lines that begin with the exception's type."""
    if lines[0].startswith(_TENSORFLOW):
        lines = [f"tf.errors.{lines[0].removeprefix(_TENSORFLOW)}", *lines[1:]]
    name, colon, message = "\n".join(lines).partition(": ")
    if not colon or not is_wrapped(message):
        return "\n".join(_message(join_assertion_values(lines)))
    text = unwrap_message(message)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def _message(lines: list[str]) -> list[str]:
    message = lines[:1]
    for line in lines[1:MAX_LINES]:
        if not line.strip() or _NOISE.match(line):
            break
        message.append(line.rstrip())
    return message


def _last_line(lines: list[str]) -> str:
    numbers = range(len(lines) - 1, -1, -1)
    shown = (lines[each].strip() for each in numbers if not _is_noise(lines, each))
    return next(filter(None, shown), "")


def _is_noise(lines: list[str], number: int) -> bool:
    """Return True if a line is a message of a library, a warning, or the source line below one."""
    line = lines[number]
    if _NOISE.match(line) or _WARNING.match(line):
        return True
    return number > 0 and line.startswith("  ") and bool(_WARNING.match(lines[number - 1]))


def _frame(frames: list[re.Match[str]], directory: str) -> str:
    own = [frame for frame in frames if directory and frame["file"].startswith(directory)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    place = f"{PurePath(frame['file']).name}:{frame['line']}"
    # TensorFlow marks functions that it has rewritten with an asterisk
    name = (frame["name"] or "").rstrip(" *")
    return f"{place} in {name}" if name else place
