# SPDX-License-Identifier: Apache-2.0
"""What libraries call beneath users: functional collectives, coalescing, batched send and recv."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

SIZE = 3


def row(rank, length=6):
    return torch.arange(float(length)) + 10 * rank


ROWS = [row(rank) for rank in range(SIZE)]
TOTAL = sum(ROWS)


def functional_forms(rank, size):
    group = dist.group.WORLD
    mine = row(rank)
    answers = {
        "all_reduce": functional.all_reduce(mine, "sum", group),
        "average": functional.all_reduce(mine, "avg", group),
        "all_gather": functional.all_gather_tensor(mine, 0, group),
        "all_gather along 1": functional.all_gather_tensor(mine.view(2, 3), 1, group),
        "reduce_scatter": functional.reduce_scatter_tensor(mine, "sum", 0, group),
        "broadcast": functional.broadcast(mine, 1, group),
        "all_to_all": functional.all_to_all_single(mine, None, None, group),
    }
    lists = {
        "all_reduces": functional.all_reduce_coalesced([mine, mine[:1]], "sum", group),
        "all_gathers": functional.all_gather_into_tensor_coalesced([mine, mine[:1]], group),
        "reduce_scatters": functional.reduce_scatter_tensor_coalesced(
            [mine, mine[:3]], "sum", [0, 0], group
        ),
    }
    answers = {name: functional.wait_tensor(tensor) for name, tensor in answers.items()}
    answers |= {n: [functional.wait_tensor(t) for t in several] for n, several in lists.items()}
    return mine, answers


def test_functional_collectives(world):
    """Out of place; each answer is that of the collective it stands for."""
    for rank, (mine, answers) in enumerate(world.run(functional_forms, size=SIZE)):
        part = slice(2 * rank, 2 * rank + 2)
        expected = {
            "all_reduce": TOTAL,
            "average": TOTAL / SIZE,
            "all_gather": torch.cat(ROWS),
            "all_gather along 1": torch.cat([row.view(2, 3) for row in ROWS], 1),
            "reduce_scatter": TOTAL[part],
            "broadcast": ROWS[1],
            "all_to_all": torch.cat([row[part] for row in ROWS]),
            "all_reduces": [TOTAL, TOTAL[:1]],
            "all_gathers": [torch.cat(ROWS), torch.cat([row[:1] for row in ROWS])],
            "reduce_scatters": [TOTAL[part], TOTAL[rank : rank + 1]],
        }

        assert torch.equal(row(rank), mine)
        assert expected.keys() == answers.keys()
        for name, value in expected.items():
            pairs = zip(value, answers[name], strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), name


def coalesced(rank, size):
    group = dist.group.WORLD
    sums = [row(rank), row(rank, 100_000)]
    gathered = [torch.empty(6 * size), torch.empty(3 * size)]
    parts = [torch.empty(2), torch.empty(1)]
    with dist._coalescing_manager(group) as _:
        for tensor in sums:
            dist.all_reduce(tensor)
    with dist._coalescing_manager(group, async_ops=True) as pending:
        for length, tensor in zip((6, 3), gathered, strict=True):
            dist.all_gather_into_tensor(tensor, row(rank, length))
    pending.wait()
    with dist._coalescing_manager(group, async_ops=True) as pending:
        for length, tensor in zip((6, 3), parts, strict=True):
            dist.reduce_scatter_tensor(tensor, row(rank, length))
    pending.wait()
    return sums, gathered, parts


def test_coalescing_manager(world):
    """Several collectives of one kind become one call."""
    short = [row(rank, 3) for rank in range(SIZE)]
    for rank, (sums, gathered, parts) in enumerate(world.run(coalesced, size=SIZE)):
        assert torch.equal(TOTAL, sums[0])
        assert torch.equal(sum(row(other, 100_000) for other in range(SIZE)), sums[1])
        assert torch.equal(torch.cat(ROWS), gathered[0])
        assert torch.equal(torch.cat(short), gathered[1])
        assert torch.equal(TOTAL[2 * rank : 2 * rank + 2], parts[0])
        assert torch.equal(sum(short)[rank : rank + 1], parts[1])


def ring(rank, size, length):
    """Send to the next and receive from the one before, in either order of posting."""
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(length)
    batch = [
        dist.P2POp(dist.isend, row(rank, length), ahead),
        dist.P2POp(dist.irecv, received, behind),
    ]
    for work in dist.batch_isend_irecv(batch if rank % 2 else batch[::-1]):
        work.wait()
    return received


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_batch_isend_irecv(world, length):
    """All ranks send at once; nobody waits for a turn."""
    for rank, received in enumerate(world.run(ring, length, size=4)):
        assert torch.equal(row((rank - 1) % 4, length), received)


def tagged(rank, size):
    """Receive the message of tag 2 before that of tag 1, which was sent first."""
    values = {tag: torch.full((3,), float(tag * (rank == 0))) for tag in (1, 2)}
    if rank == 0:
        works = [dist.isend(values[tag], 1, tag=tag) for tag in (1, 2)]
    else:
        works = [dist.irecv(values[tag], 0, tag=tag) for tag in (2, 1)]
    for work in works:
        work.wait()
    return [values[tag][0].item() for tag in (1, 2)]


def test_messages_are_matched_by_tag(world):
    assert [[1.0, 2.0], [1.0, 2.0]] == world.run(tagged, size=2)


def objects(rank, size):
    told = [{"from": rank}, "x" * 1000 * rank]
    if rank == 0:
        heard = [[None, None] for _ in range(size - 1)]
        for source, place in enumerate(heard, start=1):
            dist.recv_object_list(place, src=source)
    else:
        dist.send_object_list(told, dst=0)
        heard = None
    gathered = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank}, gathered, dst=1)
    mine = [None]
    dist.scatter_object_list(mine, [f"for {to}" for to in range(size)] if rank == 2 else None, 2)
    return heard, gathered, mine


def test_objects_travel(world):
    """send and recv, gather, scatter of what can be pickled."""
    answers = world.run(objects, size=SIZE)

    assert [[{"from": 1}, "x" * 1000], [{"from": 2}, "x" * 2000]] == answers[0][0]
    assert [{"rank": rank} for rank in range(SIZE)] == answers[1][1]
    assert [[f"for {rank}"] for rank in range(SIZE)] == [mine for _, _, mine in answers]


def gradient_of(function):
    """Weigh what comes out by its position, so that every element has its own gradient."""
    leaf = row(dist.get_rank()).requires_grad_()
    out = function(leaf)
    out = torch.cat([tensor.flatten() for tensor in out]) if isinstance(out, tuple) else out
    (out * torch.arange(1.0, out.numel() + 1)).sum().backward()
    return out.detach(), leaf.grad


def differentiable(rank, size, backend):
    from torch.distributed.nn import functional as autograd

    group = dist.new_group(backend=backend)
    take = {
        "all_reduce": lambda leaf: autograd.all_reduce(leaf.clone(), group=group),
        "all_gather": lambda leaf: autograd.all_gather(leaf, group=group),
        "broadcast": lambda leaf: autograd.broadcast(leaf.clone(), 1, group=group),
        "all_to_all_single": lambda leaf: autograd.all_to_all_single(
            torch.empty(6), leaf, group=group
        ),
        "functional all_gather": lambda leaf: functional.all_gather_tensor_autograd(leaf, 0, group),
        "functional reduce_scatter": lambda leaf: functional.reduce_scatter_tensor_autograd(
            leaf, "sum", 0, group
        ),
        "reduce": lambda leaf: autograd.reduce(leaf.clone(), 0, group=group),
    }
    return {name: gradient_of(function) for name, function in take.items()}


def test_gradients_flow_through_collectives(world):
    """torch.distributed.nn.functional, and autograd of the functional ones, as with Gloo."""
    ours = world.run(differentiable, "smdist", size=SIZE)
    gloo = world.run(differentiable, "gloo", size=SIZE)

    for rank, (mine, expected) in enumerate(zip(ours, gloo, strict=True)):
        for name, (out, gradient) in expected.items():
            has_result = name != "reduce" or rank == 0  # elsewhere Gloo leaves partial sums
            assert not has_result or torch.equal(out, mine[name][0]), name
            assert torch.equal(gradient, mine[name][1]), name
