# SPDX-License-Identifier: Apache-2.0
"""Plan beside run: in rank 0's log after 50 steps, and from the files of a plan and a trace."""

import io
import json
from contextlib import redirect_stderr

from smp_nets import batch, net, start, train_step

import smdist.modelparallel.torch as smp
from smdist.modelparallel.compare.comparison_command import compare_files, main
from smdist.modelparallel.torch.parallel.plan_comparison import CHECK_STEP, FIRST_RECORDED

PARTS = ["step", "compute", "bubble", "exposed communication", "memory"]


def trained(rank, size, folder):
    """Train until one step after the comparison; return what was printed by then, step by step."""
    start(size, microbatches=2, pipeline="1f1b")
    model = smp.DistributedModel(net())
    printed, recorded = [], []
    for step in range(1, CHECK_STEP + 2):
        with redirect_stderr(io.StringIO()) as err:
            train_step(model, *batch())
        printed.append(err.getvalue())
        (executor,) = model._split.executors.values()
        recorded += [step] * (executor.on_event is not None)
    with model.traced() as trace:
        for _ in range(3):
            train_step(model, *batch())
    run = trace.gather()
    if rank == 0:
        model.plan.save(f"{folder}/plan.json")
        run.save(f"{folder}/trace.json")
    smp.end()
    return printed, recorded


def test_rank_0_prints_the_comparison_once_after_50_steps(world, tmp_path, capsys):
    (first, recorded), (second, _) = world.run(trained, str(tmp_path), size=2)
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"

    titled = [at for at, text in enumerate(first, 1) if "the plan beside the run" in text]
    assert [CHECK_STEP] == titled
    assert [*range(FIRST_RECORDED, CHECK_STEP + 1)] == recorded  # times of events have a cost
    assert all(part in first[CHECK_STEP - 1] for part in PARTS)
    assert "5 steps of 1 pipeline" in first[CHECK_STEP - 1]
    assert not any("the plan beside the run" in text for text in second)

    found = compare_files(plan, trace)
    step, compute, bubble, exposed, memory = found.parts
    assert PARTS == [each.name for each in found.parts]
    assert 2 == found.num_steps
    assert abs(step.measured - compute.measured - bubble.measured - exposed.measured) < 1e-9
    assert min(compute.measured, bubble.measured, exposed.measured) > 0
    assert memory.measured is None
    assert memory.missing

    capsys.readouterr()  # output of the ranks in this process
    assert 0 == main([str(plan), str(trace), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert step.ratio == printed["parts"][0]["ratio"]
