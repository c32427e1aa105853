# SPDX-License-Identifier: Apache-2.0
"""The line that a training prints of itself, and how SageMaker reads it out of the log.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

The runtime renders it, the SDK tells SageMaker what to look for: both from here, so that
they cannot drift. docs/metrics.md says what each figure means.

Expressions use only what every engine reads alike (Java, Python, RE2): no lookaround, no
flags. Each has one group, which is a number: SageMaker takes nothing else. At most 40
definitions, names of 255 and expressions of 500 characters (AWS API reference,
AlgorithmSpecification and MetricDefinition, read 2026-11-21).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from sagemaker_dist.errors import require

LOSS: Final = "loss"
STEP: Final = "step"
SAMPLES_PER_SECOND: Final = "samples_per_second"
STEPS_PER_SECOND: Final = "steps_per_second"
TIMED: Final = ("all_reduce", "reduce_scatter", "all_gather")  # operations; fields add _ms
FIELDS: Final = (
    STEP,
    LOSS,
    SAMPLES_PER_SECOND,
    STEPS_PER_SECOND,
    *(f"{kind}_ms" for kind in TIMED),
)
LOSS_METRIC: Final = "train:loss"  # as SageMaker's own algorithms call it
_LINE: Final = "smdist:"
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_DIGITS: Final = 6
_NUMBER: Final = r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
# No part of another figure: 1,234.5 and 3/10 are no number here, and 0.5, or 0.5. is one.
_NUMBER_ENDS: Final = r"(?:[^0-9.,/eE]|,(?:[^0-9]|$)|\.(?:[^0-9eE]|$)|$)"
_FEW: Final = "{0,99}?"  # Java recurses for each: its stack does not take thousands
_NO_TRAINING: Final = ("test", "val", "eval")  # how words of other losses begin


def render_line(fields: Mapping[str, float]) -> str:
    """Write the line: ours first and in order, then the others; no line end.

    Numbers have six significant digits and no exponent; integers have all of theirs. What
    is no number is written as `nan` or `inf`, for people: no definition reads it.

    Raises:
        OptionError: A name is none that the line can have.
    """
    names = [name for name in FIELDS if name in fields]
    names += [name for name in fields if name not in FIELDS]
    for name in names:
        check_field(name)
    return " ".join([_LINE, *(f"{name}={_written(fields[name])}" for name in names)])


def check_field(name: str) -> None:
    """Refuse what the line cannot have as a name.

    Raises:
        OptionError: It is no letters, digits and underscores, or is too long.
    """
    require(
        _FIELD.fullmatch(name) is not None,
        what=f"a reported value is called {name[:200]!r}",
        why="the log line has names of up to 100 letters, digits and underscores",
        mend="Pass another name, such as val_loss",
    )


def metric_definitions(*more: str) -> list[dict[str, str]]:
    """What SageMaker shall look for in the log of a job that our runtime runs.

    Args:
        more: Names of other values that the script reports, which become `smdist:<name>`.

    Raises:
        OptionError: The line cannot have a value of such a name.
    """
    for name in more:
        check_field(name)
    own = [name for name in dict.fromkeys([*FIELDS, *more]) if name != LOSS]
    return [
        {"Name": LOSS_METRIC, "Regex": _loss()},
        *({"Name": f"smdist:{name}", "Regex": _field(name)} for name in own),
    ]


def _written(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not math.isfinite(value):
        return str(float(value))
    return f"{Decimal(f'{value:.{_DIGITS}g}'):f}"


def _field(name: str) -> str:
    """One field of our line, behind whatever the launcher wrote before it."""
    return rf"{_LINE}(?: [A-Za-z0-9_]+=[^ ]+){_FEW} {name}={_NUMBER}"


def _loss() -> str:
    """The training loss on our line, or as scripts print it themselves.

    `loss=0.5`, `Loss: 0.5`, `{'loss': 0.5, ...}`, `epoch 3  loss 0.5`, `train_loss=0.5`,
    `Training loss: 0.5`. Not on a line that speaks of test, val... or eval... before, and
    not `ce_loss` or `average loss`, which are other figures. A quoted 'train_loss' is not
    read: Hugging Face's Trainer so calls the mean of the whole training. Nor is the
    beginning of `1,234.5`, `0,5` or `3/10`.
    """
    before = rf"^(?:(?:^|[\W\d_]+){_word_that_begins_otherwise(_NO_TRAINING)}){_FEW}[\W\d_]*?"
    start = r"(?:^|[^\sA-Za-z_.-]|\s-)\s*"
    name = r"(?:[Ll]oss['\"]?|[Tt]rain(?:ing)?[\s_]+[Ll]oss)"
    return rf"{before}{start}{name}(?:\s*[=:]\s*|\s+){_NUMBER}{_NUMBER_ENDS}"


def _word_that_begins_otherwise(words: tuple[str, ...]) -> str:
    """A run of letters that begins with none of these words, without looking ahead."""
    firsts = "".join(dict.fromkeys(word[0].upper() + word[0] for word in words))
    rest = "|".join(_other_end(word) for word in words)
    return rf"(?:[^\W\d_{firsts}][^\W\d_]*|{rest})"


def _other_end(word: str) -> str:
    """The word's first letter, alone, before another second one, or before such an end again."""
    letter, rest = f"[{word[0].upper()}{word[0]}]", word[1:]
    if not rest:
        return ""
    other = rf"[^\W\d_{rest[0].upper()}{rest[0]}][^\W\d_]*"
    further = _other_end(rest)
    return f"{letter}(?:{other}{'|' + further if further else ''})?"
