# SPDX-License-Identifier: Apache-2.0
"""smp.init on real ranks: what it takes, what it refuses, and how long its session lives."""

import json
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.contract import ModelParallel, render
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.fingerprint import Fingerprint
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.session.process_groups import new_group
from smdist.modelparallel.torch.smp import rank_functions

TWO_STAGES = {"partitions": 2, "microbatches": 4, "placement_strategy": "spread"}
SECONDS = 10
DEGREE = "pipeline_parallel_degree"


def _refused(call):
    with pytest.raises(OptionError) as caught:
        call()
    return caught.value.about, caught.value.kind


def _facts(rank, size):
    made = session.init(TWO_STAGES)
    return (
        made is session.current(),
        made.options == ModelParallel.from_smp(TWO_STAGES),
        made.is_ours,
        made.hosts,
        (rank_functions.local_rank(), rank_functions.local_size()),
        made.groups.coordinates,
    )


def test_a_session_has_options_hosts_and_groups(world):
    """Two emulated hosts of two ranks; pipelines across them, as "spread" says."""
    for rank, facts in enumerate(world.run(_facts, hosts="aabb")):
        is_current, is_read, is_ours, hosts, local, place = facts

        assert (True, True, False) == (is_current, is_read, is_ours)
        assert (0, 0, 1, 1) == hosts
        assert (rank % 2, 2) == local
        assert (rank // 2, 0, rank % 2) == (place.pp, place.tp, place.rdp)


def _by_job(rank, size, document):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMDIST_MODEL_PARALLEL", document)
        alone = session.init().options
        session.end()
        beside = session.init({"partitions": 1, "microbatches": 3}).options
        identity_of_stage = rank_functions.pp_size()
    return alone, (beside.pipeline_parallel_degree, beside.microbatches), identity_of_stage


def test_the_job_says_how_to_split(world):
    """What the launcher left for the rank counts, beside a configuration in the script too."""
    job = ModelParallel(pipeline_parallel_degree=2, seed=3)

    assert [(job, (2, 3), 2)] * 2 == world.run(_by_job, render(job), size=2)


def _twice(rank, size, path):
    first = session.init(TWO_STAGES)
    again = [session.init(each) for each in (path, ModelParallel.from_smp(TWO_STAGES), None)]
    return [each is first for each in again], _refused(lambda: session.init({"partitions": 4}))


def test_the_same_configuration_again_is_harmless_and_another_is_not(world, tmp_path):
    """Also where it comes from a file, as ModelParallel, or is left out."""
    path = tmp_path / "smp.json"
    path.write_text(json.dumps(TWO_STAGES))
    for again, refusal in world.run(_twice, str(path), size=2):
        assert [True, True, True] == again
        assert ("config", DEGREE) == refusal[0][:2]
        assert "conflict" == refusal[1]


def _undecided(rank, size):
    made = session.init()
    early = [
        _refused(call)
        for call in (
            rank_functions.pp_rank,
            rank_functions.get_dp_group,
            rank_functions.get_mp_process_group,
        )
    ]
    before = (
        made.is_decided,
        rank_functions.rank(),
        rank_functions.size(),
        rank_functions.local_size(),
    )
    groups = made.decide(2)
    late = _refused(lambda: made.decide(4)), made.decide(2) is groups
    return (
        early,
        before,
        late,
        (rank_functions.pp_rank(), rank_functions.pp_size(), rank_functions.rdp_rank()),
    )


def test_a_degree_that_is_auto_is_decided_later(world):
    """Until then the world alone is known; afterwards it does not change."""
    for rank, (early, before, late, after) in enumerate(world.run(_undecided, hosts="aabb")):
        assert [((DEGREE,), "too_early")] * 3 == early
        assert (False, rank, 4, 2) == before
        assert (((DEGREE,), "conflict"), True) == late
        assert (rank % 2, 2, rank // 2) == after


def _disagree(rank, size):
    made = session.init()
    refusals = _refused(lambda: made.decide(1 + rank)), _refused(lambda: made.decide(3))
    return *refusals, made.decide(2).pp_size


def test_ranks_that_decide_differently_learn_it_and_so_they_do_where_it_does_not_divide(world):
    """The same error on both, and the session can still decide."""
    for differs, divides, pp_size in world.run(_disagree, size=2):
        assert ((DEGREE,), "difference") == differs
        assert ((DEGREE,), "indivisible") == divides
        assert 2 == pp_size


def _too_many(rank, size):
    refusal = _refused(lambda: session.init({"partitions": 4, "microbatches": 8}))
    return refusal, session.is_initialized(), dist.is_initialized()


def test_a_degree_above_the_world_is_refused_on_every_rank(world):
    """By the option; torch.distributed, which was there before, stays."""
    for refusal, has_session, has_group in world.run(_too_many, size=2):
        assert ((DEGREE,), "indivisible") == refusal
        assert (False, True) == (has_session, has_group)


def _one_is_wrong(rank, size):
    config = {"partitions": 2, "microbatches": 0 if rank == 2 else 1}
    with pytest.raises(OptionError) as caught:
        session.init(config)
    return caught.value.about, caught.value.kind, getattr(caught.value, "rank", None)


def test_a_fault_of_one_rank_is_an_error_on_all(world):
    """Nobody waits for it: the rank has its own error, and the others name the rank."""
    for rank, refusal in enumerate(world.run(_one_is_wrong, deadline=SECONDS)):
        own, others = (("microbatches",), "option", None), ((), "failed", 2)
        assert (own if rank == 2 else others) == refusal


def _differ(rank, size):
    with pytest.raises(OptionError) as caught:
        session.init({"partitions": 2, "microbatches": 1 + rank})
    return caught.value.about, caught.value.kind, caught.value.rank, str(caught.value)


def test_ranks_with_different_configurations_are_told_which(world):
    """Ranks, option and values."""
    expected = (
        "smp.init got different configurations on ranks 0 and 1: microbatches is 1 and 2."
        " Pass the same configuration on every rank."
    )

    fields = ("config", "microbatches"), "difference", 1
    assert [(*fields, expected)] * 2 == world.run(_differ, size=2)


def _gone(rank, size, path):
    session.init(TWO_STAGES)
    dist.destroy_process_group()
    nothing = session.is_initialized(), _refused(session.current)
    dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=rank, world_size=size)
    still = session.is_initialized()
    anew = session.init({"partitions": 1})
    return nothing, still, anew.groups.pp_size, rank_functions.rdp_size(), dist.get_backend()


def test_a_session_ends_with_its_process_group(world, tmp_path):
    """What was made on another default group is never used: here on Gloo, with other degrees."""
    for (running, refusal), still, pp, rdp, backend in world.run(
        _gone, str(tmp_path / "store"), size=2
    ):
        assert (False, False) == (running, still)
        assert ((), "not_initialized") == refusal
        assert (1, 2, "gloo") == (pp, rdp, backend)


def _ended(rank, size):
    session.init(TWO_STAGES)
    session.end()
    left = session.is_initialized(), dist.is_initialized()
    return left, session.init({"partitions": 1}).groups.pp_size


def test_an_ended_session_leaves_a_process_group_that_it_found(world):
    """And another one can start."""
    assert [((False, True), 1)] * 2 == world.run(_ended, size=2)


def _timeouts(rank, size, path):
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(path, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=77),
    )
    backend = new_group(range(size), dist.group.WORLD)._get_backend(torch.device("cpu"))
    dist.barrier()  # nobody leaves while others still connect
    return backend.options._timeout.total_seconds()


def test_a_group_waits_as_long_as_the_default_group(world, tmp_path):
    """The deadline that the script gave to init_process_group holds for pipelines, too."""
    assert [77.0] * 2 == world.run(_timeouts, str(tmp_path / "store"), size=2)


def test_without_a_session_every_question_is_refused():
    """The error is that there is no session."""
    for ask in (
        session.current,
        rank_functions.rank,
        rank_functions.pp_rank,
        rank_functions.get_mp_group,
    ):
        assert ((), "not_initialized") == _refused(ask)

    assert not session.is_initialized()


def _names(rank, size):
    made = session.init(TWO_STAGES)
    axes = ("pp", "tp", "rdp", "dp", "mp")
    faults = []
    for axis in axes:
        members = list(made.members(Axis(axis)))
        group = getattr(rank_functions, f"get_{axis}_process_group")()
        if members != getattr(rank_functions, f"get_{axis}_group")():
            faults.append((axis, "list"))
        if members != dist.get_process_group_ranks(group):
            faults.append((axis, "group"))
        if members.index(rank) != getattr(rank_functions, f"{axis}_rank")():
            faults.append((axis, "rank"))
        if len(members) != getattr(rank_functions, f"{axis}_size")():
            faults.append((axis, "size"))
    whole = rank_functions.get_world_process_group() is dist.group.WORLD
    return faults, whole, rank_functions.get_mp_group(), rank_functions.get_dp_group()


def test_the_functions_of_smp_say_what_the_groups_are(world):
    """spread on 4 ranks: replicas 0 2 and 1 3, stages 0 1 and 2 3."""
    for rank, (faults, is_world, replica, stage) in enumerate(world.run(_names)):
        assert [] == faults
        assert is_world
        assert [rank % 2, rank % 2 + 2] == replica
        assert [rank // 2 * 2, rank // 2 * 2 + 1] == stage


def _by_plan(rank, size, paths):
    made = session.init(ModelParallel(plan=paths[rank]))
    return made.options.pipeline_parallel_degree, made.is_decided, rank_functions.pp_size()


def test_a_plan_says_how_many_ranks_make_a_pipeline(world, tmp_path):
    """Each host has a copy of its own, so paths differ and what they say does not."""
    paths = [_saved(tmp_path / str(rank), degree=2) for rank in range(4)]

    assert [(2, True, 2)] * 4 == world.run(_by_plan, paths)


def _by_other_plan(rank, size, paths, degree):
    config = ModelParallel(plan=paths[rank], pipeline_parallel_degree=degree)
    return _refused(lambda: session.init(config))


def test_plans_that_differ_and_degrees_that_no_plan_has_are_refused_everywhere(world, tmp_path):
    same, other = (_saved(tmp_path / str(degree), degree=degree) for degree in (2, 1))
    for said in world.run(_by_other_plan, [same, same, other, same], "auto"):
        assert ("config", DEGREE, "plan") == said[0]
        assert "difference" == said[1]
    for said in world.run(_by_other_plan, [same] * 4, 4):
        assert ((DEGREE,), "conflict") == said


def _saved(folder, *, degree):
    folder.mkdir()
    units = [f"layers.{number}" for number in range(degree)]
    plan = Plan(
        model="Model", pipeline_parallel_degree=degree, data_parallel_degree=4 // degree,
        schedule="1f1b", batch_size=4, num_microbatches=4,
        stages=tuple((unit,) for unit in units),
        fingerprint=Fingerprint(units={}, others="", shapes=""),
    )  # fmt: skip
    plan.save(folder / "plan.json")
    return str(folder / "plan.json")
