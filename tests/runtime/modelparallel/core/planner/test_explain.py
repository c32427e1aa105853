# SPDX-License-Identifier: Apache-2.0
"""What a plan says for itself.

`explained.txt` is written anew where SMDIST_UPDATE_SNAPSHOTS=1 is set. Read it: it is for people.
"""

import os
from pathlib import Path

import pytest
from plan_problems import MIB, Model, problem

from smdist.modelparallel.core.planner import find_plan

GOLDEN = Path(__file__).with_name("explained.txt")


def explained():
    model = Model((2e-3,) * 8, head=5e-3, tied=True, batch=32, saved=4 * MIB)
    return find_plan(problem(model, hosts=2, device_memory=150 * MIB)).explain()


def test_text_is_as_people_last_read_it():
    """Decisions and why, stages, memory, time, ties, and what was not chosen."""
    text = explained()
    if os.environ.get("SMDIST_UPDATE_SNAPSHOTS") == "1":
        GOLDEN.write_text(text)

    assert GOLDEN.read_text() == text


@pytest.mark.parametrize("options", [{}, {"pipeline_parallel_degree": 4, "device_memory": 1 << 40}])
@pytest.mark.parametrize("name", ["h", "model.encoder.layers.of.a.very.deep.module.tree.layers"])
def test_lines_have_up_to_a_hundred_columns(monkeypatch, options, name):
    """Tables too, whatever names units have."""
    model = Model(tied=True)
    blocks = [(each.replace("h", name), seconds) for each, seconds in model.blocks()]
    monkeypatch.setattr(model, "blocks", lambda *_: blocks)
    text = find_plan(problem(model, **options)).explain()

    assert 100 >= max(map(len, text.splitlines()))
    assert "lm_head" in text


def test_plan_without_a_forecast_explains_its_decisions():
    """What was edited or written by hand still says which units are where."""
    plan = find_plan(problem(ranks=2, pipeline_parallel_degree=2, schedule="1f1b"))
    bare = type(plan).from_document({**plan.document(), "forecast": None, "rejected": []})
    text = bare.explain()

    assert "Plan for GPT on 2 ranks" in text
    assert "lm_head" in text
    assert "Time" not in text
