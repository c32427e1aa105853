# SPDX-License-Identifier: Apache-2.0
"""Fuzz target of the file of a plan, which users edit."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import cache

from byte_source import ByteSource, ValidDocuments
from plan_problems import Model, problem
from reader_list import MEMORY, kept, target

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.planner import find_plan

_FILE = MEMORY / "plan.json"


@cache
def _plans() -> ValidDocuments:
    """Return a plan of two stages, and thrice a plan of one stage, which takes less time."""
    two = problem(
        Model(seconds=(1e-3, 1e-3), tied=True),
        ranks=2,
        pipeline_parallel_degree=2,
        schedule="1f1b",
    )
    one = problem(Model(seconds=(1e-3,), batch=2), ranks=1)
    small, large = _with_one_unit(find_plan(one)).document(), find_plan(two).document()
    return ValidDocuments(small, small, small, large, words=(small, large))


def _with_one_unit(plan: Plan) -> Plan:
    name = plan.stages[0][1]
    prints = replace(plan.fingerprint, units={name: plan.fingerprint.units[name]})
    smaller = replace(plan, stages=((name,),), fingerprint=prints, forecast=None)
    assert plan.forecast is not None
    return replace(smaller, forecast=replace(plan.forecast, basis=smaller.basis))


@target
def plan(source: ByteSource) -> None:
    """The file of a plan, which users edit, and more often the JSON document in it."""
    try:
        if source.below(16) == 15:
            found = Plan.load(kept(_FILE, source.json_text(_plans())))
        else:
            found = Plan.from_document(source.json_value(_plans()))
    except OptionError:
        return
    assert Plan.from_document(json.loads(json.dumps(found.document()))) == found
    if source.below(4) == 3:  # the explanation takes longer than all else
        with contextlib.suppress(OptionError):  # a plan may name a schedule that does not exist
            assert found.explain()
