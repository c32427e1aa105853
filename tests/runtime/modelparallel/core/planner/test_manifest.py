# SPDX-License-Identifier: Apache-2.0
"""A checkpoint holds every parameter once, under the names of the whole model."""

import json
from dataclasses import replace

from plan_problems import Model, problem

from smdist.modelparallel.core.graph import Parameter
from smdist.modelparallel.core.manifest import manifest
from smdist.modelparallel.core.planner import find_plan

MODEL = Model((1e-3,) * 4, tied=True)
OPTIONS = {"pipeline_parallel_degree": 2, "schedule": "1f1b", "microbatches": 8}


def test_every_parameter_is_written_by_one_of_its_holders():
    """Tied ones are held twice and written once."""
    plan = find_plan(problem(MODEL, ranks=2, **OPTIONS))
    found = manifest(MODEL.graph(1), plan)
    tied = found.entries[0]

    assert ("wte.weight", ("lm_head.weight",)) == (tied.name, tied.aliases)
    assert ((0, 1), 0) == (tied.stages, tied.written_by)
    assert sorted(each.name for each in MODEL.graph(1).parameters) == sorted(
        entry.name for stage in range(2) for entry in found.of_stage(stage)
    )
    assert 2 == json.loads(json.dumps(found.document()))["num_stages"]


def test_parameter_that_nothing_uses_is_written_too():
    """A checkpoint is the whole model's."""
    graph = MODEL.graph(1)
    spare = Parameter(name="spare", shape=(1,), dtype="float32", num_elements=1, num_bytes=4)
    more = replace(graph, parameters=(*graph.parameters, spare))
    asked = problem(MODEL, ranks=2, **OPTIONS)
    costs = MODEL.costs(1)
    plan = find_plan(replace(asked, at=lambda *_: (more, costs)))

    assert ((0,), 0) == (manifest(more, plan).entries[-1].stages, plan.stage_of["wte"])
