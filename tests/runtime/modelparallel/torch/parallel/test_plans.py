# SPDX-License-Identifier: Apache-2.0
"""Where stages come from: marks, a plan that is passed, a file, or another run's part."""

from smp_nets import batch, failure, net, start, train_step

import smdist.modelparallel.torch as smp


def marked(rank, size):
    start(size, auto_partition=False, default_partition=1)
    raw = net()
    smp.set_partition(raw.layers[0], 0)
    model = smp.DistributedModel(raw)
    train_step(model, *batch())
    return model.plan.stages


def test_marks_place_what_they_mark(world):
    for stages in world.run(marked, size=2):
        assert ("layers.0",) == stages[0]
        assert "head" in stages[1]


def given(rank, size, folder):
    """The same loss by a plan that is passed, from a file, and by that of another run's part."""
    start("auto", microbatches=2, pipeline="1f1b")
    options = {"pipeline_parallel_degree": size, "microbatches": 2, "pipeline": "1f1b"}
    plan = smp.allgather(smp.plan(net(), batch()[:1], size, costs="estimate", **options))[0]
    passed = smp.parallelize(net(), plan)
    losses = [train_step(passed, *batch()).reduce_mean().item()]
    part = smp.parallelize(net(), plan, batch()[:1])
    if rank == 0:
        plan.save(f"{folder}/plan.json")
    smp.barrier()
    smp.end()

    start(size, plan=f"{folder}/plan.json", microbatches="auto", pipeline="auto")
    model = smp.DistributedModel(net())
    losses.append(train_step(model, *batch()).reduce_mean().item())
    assert model.plan.basis == passed.plan.basis == part.plan.basis
    saved = model.local_state_dict()
    del model
    smp.end()

    start(size, pipeline="simple")
    model = smp.DistributedModel(net())
    model.load_state_dict(saved)
    losses.append(train_step(model, *batch()).reduce_mean().item())
    assert model.plan.basis == passed.plan.basis
    return losses, failure(model.cut_by, plan)


def test_plans_are_taken_from_calls_files_and_parts_of_state(world, tmp_path):
    for losses, refused in world.run(given, str(tmp_path), size=2):
        assert 1 == len(set(losses))
        assert (("plan",), "conflict") == (refused.about, refused.kind)


def contradicted(rank, size, folder):
    """A plan with other microbatches than the session: from a call, and from a file."""
    options = {"pipeline_parallel_degree": size, "microbatches": 2, "pipeline": "1f1b"}
    start(size, pipeline="simple")
    plan = smp.allgather(smp.plan(net(), batch()[:1], size, costs="estimate", **options))[0]
    refused = failure(smp.parallelize, net(), plan)
    if rank == 0:
        plan.save(f"{folder}/plan.json")
    smp.barrier()
    smp.end()
    start(size, plan=f"{folder}/plan.json", pipeline="auto")
    return refused, failure(train_step, smp.DistributedModel(net()), *batch())


def test_options_that_differ_from_a_plan_are_refused(world, tmp_path):
    """What the planner may choose, and SMP's defaults, differ from no plan."""
    for of_call, of_file in world.run(contradicted, str(tmp_path), size=2):
        assert {(("microbatches",), "conflict"), (("pipeline",), "conflict")} == set(of_call.faults)
        assert (("microbatches",), "conflict") == (of_file.about, of_file.kind)
