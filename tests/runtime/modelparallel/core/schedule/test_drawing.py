# SPDX-License-Identifier: Apache-2.0
"""Drawings say what schedules do, and the docstrings' drawings are what generators make."""

import inspect

import pytest
from schedule_grid import NAMED

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.schedule import (
    SCHEDULES,
    draw,
    make_schedule,
    parse_drawing,
)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_generator_makes_what_its_docstring_draws(name):
    """Every drawing in it, the order of the actions and their times."""
    drawings = _drawings(SCHEDULES[name].orders)

    assert drawings
    for drawing in drawings:
        drawn = parse_drawing(drawing, name)
        made = make_schedule(
            name,
            num_ranks=drawn.num_ranks,
            num_microbatches=drawn.num_microbatches,
            virtual_stages=drawn.num_stages // drawn.num_ranks,
        )
        assert drawn == made
        assert drawing == draw(made)


@pytest.mark.parametrize(("name", "virtual_stages"), NAMED)
def test_a_drawing_is_read_as_what_was_drawn(name, virtual_stages):
    """Of any number of stages a rank, and with numbers of two digits."""
    schedule = make_schedule(name, num_ranks=3, num_microbatches=11, virtual_stages=virtual_stages)

    assert schedule == parse_drawing(f"So:\n\n{draw(schedule)}\n", name)


def test_times_are_columns():
    """F takes one column and B two; nothing begins before what it waits for has ended."""
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)

    assert [
        "rank 0  F0 F1       B0===    B1===",
        "rank 1     F0 B0=== F1 B1===",
    ] == draw(schedule).splitlines()


@pytest.mark.parametrize(
    ("drawing", "about", "kind"),
    [
        ("nothing here", ("text",), "option"),
        ("rank 1  F0 B0===", ("text",), "option"),
        ("rank 0  F0 X0", ("text", "X0"), "unknown_action"),
        ("rank 0  F0 b0===", ("text", "b0==="), "unknown_action"),
    ],
)
def test_what_is_no_drawing_is_refused(drawing, about, kind):
    with pytest.raises(OptionError) as error:
        parse_drawing(drawing)

    assert (about, kind) == (error.value.about, error.value.kind)


def _drawings(generator):
    blocks = inspect.getdoc(generator).split("\n\n")
    return [block.rstrip() for block in blocks if block.startswith("rank 0")]
