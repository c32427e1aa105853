# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/distributions.md: `python docs/distributions.py`, or `make docs`."""

from collections.abc import Iterator
from pathlib import Path

from sagemaker_dist.contract.distribution_keys import SMDIST
from sagemaker_dist.planning.distribution_support import (
    CLASSES,
    GENERIC,
    SUPPORT,
    TENSORFLOW,
    Support,
)

PAGE = Path(__file__).with_suffix(".md")
BEGIN, END = "<!-- begin: written by distributions.py -->\n", "<!-- end -->\n"
FRAMEWORKS = [kind for kind in CLASSES if kind != GENERIC]


def written(page: str) -> str:
    """The page with the table between its marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "".join(f"{line}\n" for line in _table()) + END + after


def _table() -> Iterator[str]:
    theirs = [f"SageMaker's image, `{kind}`" for kind in FRAMEWORKS]
    heads = ["key", "typed", *theirs, "our image", "our image, `TensorFlow`", "to know"]
    yield _row(heads)
    yield "|---" * len(heads) + "|"
    for key, support in SUPPORT.items():
        options = ", ".join(f"`{name}`" for name in support.option.split(", "))
        cells = [_theirs(key, kind) for kind in FRAMEWORKS]
        ours = [support.with_launcher(kind) for kind in (GENERIC, TENSORFLOW)]
        to_know = "; ".join(filter(None, (support.note, *_why_not(support))))
        yield _row([f"`{key}`", options, *cells, *ours, to_know])


def _theirs(key: str, kind: str) -> str:
    return "our image" if key == SMDIST else SUPPORT[key].in_aws_image(kind)


def _why_not(support: Support) -> Iterator[str]:
    if support.why_not and support.not_tensorflow:
        yield f"not in our image: {support.why_not}"
    elif support.not_tensorflow:
        yield f"not with `TensorFlow` in our image: {support.not_tensorflow}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
