# SPDX-License-Identifier: Apache-2.0
"""Gradients after a step: means over replicas, sums over the holders of a tied parameter."""

import torch
import torch.distributed as dist
from tied import HALVES, IDS, share, tied

from smdist.modelparallel.torch.replicas import Replicas

NAMES = {
    0: ["first.weight", *(f"layers.{n}.{kind}" for n in (0, 1) for kind in ("weight", "bias"))],
    1: ["first.weight", "layers.2.weight", "layers.2.bias", "norm.weight", "norm.bias"],
}


def made(size, *, seed=0, **options):
    torch.set_num_threads(1)
    part = share(tied(seed), IDS[:2], HALVES, size=size, degree=2)
    replicas = Replicas(
        part.stages, part.placement, part.schedule, part.groups, graph=part.captured.graph,
        **options,
    )  # fmt: skip
    replicas.prepare()
    return part, replicas


def numbered(replicas, number, *, without=()):
    """Gradients as a backward pass would leave them: `number` everywhere."""
    for name, parameter in replicas.parameters.items():
        if name not in without:
            parameter.grad = torch.full_like(parameter, float(number))


def step(part, replicas, number, **options):
    replicas.begin()
    numbered(replicas, number, **options)
    for stage in part.stages:
        replicas.hooks.before_backward(stage, True)
        replicas.hooks.after_backward(stage, True)
    replicas.finish()
    return {name: p.grad for name, p in replicas.parameters.items()}


def firsts(gradients):
    return {name: None if g is None else float(g.unique()) for name, g in gradients.items()}


def one_step(rank, size, fusion_bytes):
    part, replicas = made(size, fusion_bytes=fusion_bytes)
    return part.groups.pp_rank, firsts(step(part, replicas, 10**rank))


def check_means(found):
    left, right = (1 + 100) / 2, (10 + 1000) / 2
    for pp_rank, gradients in found:
        own = dict.fromkeys(NAMES[pp_rank], left if pp_rank == 0 else right)

        assert own | {"first.weight": left + right} == gradients


def test_gradients_are_means_over_replicas_and_sums_over_ties(world):
    """Ranks 0 and 2 hold stage 0, ranks 1 and 3 stage 1; the weight of both ends is tied."""
    check_means(world.run(one_step, 2**20, hosts="aabb"))


def test_small_buffers_do_not_change_anything(world):
    """One parameter a buffer."""
    check_means(world.run(one_step, 1, hosts="aabb"))


def some_are_missing(rank, size):
    part, replicas = made(size)
    missing = {"layers.0.bias", "norm.bias"}  # nobody has these
    if rank in (0, 1):
        missing |= {"layers.1.weight", "norm.weight", "first.weight"}
    return part.groups.pp_rank, firsts(step(part, replicas, 4, without=missing))


def test_who_has_no_gradient_takes_part_with_zeros(world):
    """And where no replica has one it stays None."""
    for pp_rank, gradients in world.run(some_are_missing, hosts="abab"):
        missing, lone = [("layers.0.bias", "layers.1.weight"), ("norm.bias", "norm.weight")][
            pp_rank
        ]

        assert gradients[missing] is None
        assert gradients[lone] == 2
        assert gradients["first.weight"] == 2 + 2


def one_side_of_a_tie(rank, size):
    part, replicas = made(size)
    missing = {"first.weight"} if part.groups.pp_rank == 1 else set()
    return firsts(step(part, replicas, 4, without=missing))["first.weight"]


def test_a_tied_parameter_that_one_stage_does_not_use_has_the_gradient_of_the_other(world):
    """And both hold it."""
    assert [4, 4, 4, 4] == world.run(one_side_of_a_tie, hosts="aabb")


def steps_add_up(rank, size):
    part, replicas = made(size)
    first = step(part, replicas, 10**rank)
    before = {name: g.clone() for name, g in first.items()}
    second = step(part, replicas, 10**rank)
    third = step(part, replicas, 0, without=list(replicas.parameters))
    return all(
        torch.equal(2 * before[name], second[name]) and torch.equal(second[name], third[name])
        for name in before
    )


def test_gradients_of_steps_without_zero_grad_add_up(world):
    """Neither means nor sums over ties are taken twice."""
    assert [True] * 4 == world.run(steps_add_up, hosts="aabb")


def begun(rank, size):
    """How many reductions have begun: before, and after the last backward pass of each stage."""
    torch.set_num_threads(1)
    stage_of = {"first": 0, "layers.0": 0, "layers.1": 1, "layers.2": 2, "norm": 3, "last": 3}
    part = share(
        tied(), IDS[:2], stage_of, size=size, degree=2, schedule="interleaved_1f1b", virtual=2
    )
    replicas = Replicas(
        part.stages, part.placement, part.schedule, part.groups, graph=part.captured.graph
    )
    plain, calls = dist.all_reduce, []
    dist.all_reduce = lambda *args, **options: calls.append(1) or plain(*args, **options)
    try:
        replicas.begin()
        numbered(replicas, 1)
        counts = [len(calls)]
        for stage in sorted(part.stages, reverse=True):
            replicas.hooks.after_backward(stage, False)
            replicas.hooks.after_backward(stage, True)
            counts.append(len(calls))
        replicas.finish()
    finally:
        dist.all_reduce = plain
    return counts, len(calls)


def test_reduction_of_a_stage_starts_when_its_last_backward_pass_has_ended(world):
    """While another stage of the rank has still to go backward."""
    for counts, in_all in world.run(begun, hosts="aabb"):
        assert [0, 1, 2] == counts
        assert 2 == in_all


def values(rank, size):
    part, replicas = made(size, seed=rank)
    return part.groups.pp_rank, {n: p.detach().clone() for n, p in replicas.parameters.items()}


def test_values_are_those_of_the_first_replica(world):
    """Every rank made its model from another seed; a tie has the values of its first stage."""
    found = world.run(values, hosts="aabb")
    expected = [dict(tied(stage).named_parameters()) for stage in (0, 1)]
    expected[1]["first.weight"] = expected[0]["first.weight"]

    for pp_rank, parameters in found:
        assert NAMES[pp_rank] == list(parameters)
        for name, parameter in parameters.items():
            assert torch.equal(expected[pp_rank][name], parameter), name
