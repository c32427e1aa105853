# SPDX-License-Identifier: Apache-2.0
"""Log line with the metrics of a training, and the regular expressions that extract them.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

The runtime writes the line, and the SDK sends the expressions to SageMaker, which applies
them to the job's log. The runtime and the SDK both use this module, so that the expressions always
match the line. docs/metrics.md explains each metric.

The expressions use only syntax that Java, Python and RE2 share: no lookaround, no flags. Each
expression has one group, which matches a number, as SageMaker requires. SageMaker allows at most 40
metric definitions, 255 characters in a name and 500 in an expression (AWS API reference,
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
COST: Final = "cost_usd"
TIMED: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
)  # collectives; their fields end in _ms
FIELDS: Final = (
    STEP,
    LOSS,
    SAMPLES_PER_SECOND,
    STEPS_PER_SECOND,
    *(f"{kind}_ms" for kind in TIMED),
    COST,
)
LOSS_METRIC: Final = "train:loss"  # name of this metric in SageMaker's own algorithms
_LINE: Final = "smdist:"
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_DIGITS: Final = 6
_NUMBER: Final = r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
# The text after a number: "1,234.5" and "3/10" do not match; "0.5," and "0.5." do.
_NUMBER_ENDS: Final = r"(?:[^0-9.,/eE]|,(?:[^0-9]|$)|\.(?:[^0-9eE]|$)|$)"
_FEW: Final = "{0,99}?"  # Java recurses for each repetition; thousands would overflow its stack
_NO_TRAINING: Final = ("test", "val", "eval")  # beginnings of words that mark other losses


def render_line(fields: Mapping[str, float]) -> str:
    """Return the metrics line with `fields`, a dict of names and numbers.

    The line has no line break at its end. The runtime's own names (`FIELDS`) are first, in a fixed
    order. The other names follow in the order of the dict.
    Numbers have six significant digits and no exponent; integers have all their digits. The line
    may contain `nan` and `inf`, but no metric expression matches these two.

    Raises:
        OptionError: A name is not allowed in the line; see `check_field`.
    """
    names = [name for name in FIELDS if name in fields]
    names += [name for name in fields if name not in FIELDS]
    for name in names:
        check_field(name)
    return " ".join([_LINE, *(f"{name}={_written(fields[name])}" for name in names)])


def check_field(name: str) -> None:
    """Check that `name` is allowed as a field of the metrics line.

    Raises:
        OptionError: The name is too long, or has other characters than letters, digits and
            underscores.
    """
    require(
        _FIELD.fullmatch(name) is not None,
        what=f"a reported metric is named {name[:200]!r}",
        why="a name consists of up to 100 letters, digits and underscores, and does not begin"
        " with a digit",
        hint="Pass another name, such as val_loss",
        about=name,
    )


def metric_definitions(*more: str) -> list[dict[str, str]]:
    """Return the metric definitions by which SageMaker extracts metrics from a job's log.

    A definition is a dict with "Name" and "Regex", as CreateTrainingJob requires.

    Args:
        more: Names of further values that the script reports, such as "val_loss"; their metrics
            are named `smdist:<name>`.

    Raises:
        OptionError: A name is not allowed in the metrics line; see `check_field`.
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
    """Return the regular expression that extracts the number of one field of the metrics line.

    The expression also matches if other text, such as a timestamp, precedes the metrics line.
    """
    return rf"{_LINE}(?: [A-Za-z0-9_]+=[^ ]+){_FEW} {name}={_NUMBER}"


def _loss() -> str:
    """Return the regular expression for the training loss in a metrics line or a script's output.

    These match: `loss=0.5`, `Loss: 0.5`, `{'loss': 0.5, ...}`, `epoch 3  loss 0.5`,
    `train_loss=0.5`, `Training loss: 0.5`.

    These do not match: a line with a word that begins with test, val or eval before the loss;
    `ce_loss` and `average loss`, which are other quantities; 'train_loss' in quotes, which
    in Hugging Face's Trainer is the mean of the whole training; and the first digits of
    `1,234.5`, `0,5` or `3/10`.
    """
    before = rf"^(?:(?:^|[\W\d_]+){_word_that_begins_otherwise(_NO_TRAINING)}){_FEW}[\W\d_]*?"
    start = r"(?:^|[^\sA-Za-z_.-]|\s-)\s*"
    name = r"(?:[Ll]oss['\"]?|[Tt]rain(?:ing)?[\s_]+[Ll]oss)"
    return rf"{before}{start}{name}(?:\s*[=:]\s*|\s+){_NUMBER}{_NUMBER_ENDS}"


def _word_that_begins_otherwise(words: tuple[str, ...]) -> str:
    """Return a regular expression for a word that begins with none of `words`.

    The expression uses no lookahead, because some engines of regular expressions do not have it.
    """
    firsts = "".join(dict.fromkeys(word[0].upper() + word[0] for word in words))
    rest = "|".join(_other_end(word) for word in words)
    return rf"(?:[^\W\d_{firsts}][^\W\d_]*|{rest})"


def _other_end(word: str) -> str:
    """Return a regular expression for words that begin like `word`, but not with all of `word`.

    For "test", these are words such as "t", "time" or "tes".
    """
    letter, rest = f"[{word[0].upper()}{word[0]}]", word[1:]
    if not rest:
        return ""
    other = rf"[^\W\d_{rest[0].upper()}{rest[0]}][^\W\d_]*"
    further = _other_end(rest)
    return f"{letter}(?:{other}{'|' + further if further else ''})?"
