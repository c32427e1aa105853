# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other, on our backend and on Gloo."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.comm_groups import CommGroup, RankType
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.session import object_collectives
from smdist.modelparallel.torch.session.object_collectives import broadcast_object
from smdist.modelparallel.torch.smp import comm
from smdist.modelparallel.torch.smp.comm import UnsentError
from smdist.modelparallel.torch.smp.rank_functions import pp_rank, rank, rdp_rank

PAIRS = {"partitions": 2}  # cluster: pipelines 0 1 and 2 3
SIZES = (1, 500, 5_000, 500_000)
SECONDS = 10


def _begin(number, size, store):
    """A session on our backend, or on Gloo where a file for its store is given."""
    torch.set_num_threads(1)
    if store:
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, size), rank=number, world_size=size
        )
    session.init(PAIRS)


@pytest.fixture(params=["smdist", "gloo"])
def store(request, tmp_path):
    """Of Gloo, or "" for our backend."""
    return str(tmp_path / "store") if request.param == "gloo" else ""


def _around(number, size, store):
    """Objects of all sizes go round all ranks, each adding its number."""
    _begin(number, size, store)
    results = []
    for length in SIZES:
        if number == 0:
            comm.send({"seen": [0], "data": torch.full((length,), 2.0)}, 1)
        parcel = comm.recv_from((number - 1) % size)
        if number == 0:
            results.append((parcel["seen"], float(parcel["data"].sum()) / length))
        else:
            parcel["seen"].append(number)
            comm.send(parcel, (number + 1) % size)
    return results


def test_objects_go_round_in_every_size(world, store):
    """In the head, the rest, or as parts: what comes back has passed every rank."""
    results = world.run(_around, store, hosts="aabb")

    assert [([0, 1, 2, 3], 2.0)] * len(SIZES) == results[0]


def _by_group(number, size, store):
    _begin(number, size, store)
    if pp_rank() == 0:
        comm.send(("pp", rank()), 1, RankType.PP_RANK)
    else:
        pipeline = comm.recv_from(0, RankType.PP_RANK)
    if rdp_rank() == 0:
        comm.send(("dp", rank()), 1, RankType.DP_RANK)
    else:
        stage = comm.recv_from(0, RankType.RDP_RANK)
    if number != 3:
        return None
    return pipeline, stage


def test_ranks_count_as_their_type_says(world, store):
    """Rank 3 hears from 2, its pipeline's first, and from 1, its stage's first."""
    assert (("pp", 2), ("dp", 1)) == world.run(_by_group, store)[3]


def _broadcast(number, size, store):
    _begin(number, size, store)
    mine = torch.arange(3000.0) + number
    heard = []
    if number == 2:
        comm.broadcast({"from": number, "tensor": mine})
    else:
        heard.append(comm.recv_from(2))
    if pp_rank() == 1:
        comm.broadcast(number, CommGroup.MP_GROUP)
    else:
        heard.append(comm.recv_from(1, RankType.MP_RANK))
    heard = [h["from"] + float(h["tensor"][0]) if isinstance(h, dict) else h for h in heard]
    comm.barrier()
    return heard


def test_a_broadcast_is_received_with_recv_from(world, store):
    """As SMP documents it: the root broadcasts, the others of the group receive from it."""
    assert [[4.0, 1], [4.0], [3], [4.0]] == world.run(_broadcast, store)


def _gathered(number, size, store):
    _begin(number, size, store)
    everyone = comm.allgather({"rank": number, "list": [number] * number * 500})
    stage = comm.allgather(torch.full((4000,), float(number)), CommGroup.DP_GROUP)
    alone = comm.allgather(number, CommGroup.TP_GROUP)
    return (
        [(each["rank"], len(each["list"])) for each in everyone],
        [float(each[-1]) for each in stage],
        alone,
    )


def test_all_gather_objects_of_unlike_sizes(world, store):
    """Every rank has all of them, in group order."""
    for number, (everyone, stage, alone) in enumerate(world.run(_gathered, store)):
        assert [(0, 0), (1, 500), (2, 1000), (3, 1500)] == everyone
        assert [number % 2, number % 2 + 2] == stage
        assert [number] == alone


def _shared(number, size, store):
    _begin(number, size, store)
    pipeline = session.current().group_of(Axis.PP)
    loss = broadcast_object(torch.tensor(number + 0.5), 1, pipeline)
    whole = broadcast_object([torch.ones(9000) * number, number], 0, session.current().world)
    return float(loss), (float(whole[0].sum()), whole[1])


def test_one_rank_sends_an_object_to_its_group(world, store):
    """The last stage's loss to every rank of its pipeline, and larger things to the world."""
    for number, (loss, whole) in enumerate(world.run(_shared, store)):
        assert number // 2 * 2 + 1.5 == loss
        assert (0.0, 0) == whole


def _beside_a_pipeline(number, size, store):
    """Sends of a pipeline are posted first; messages pass them by, with the same ranks and tag."""
    _begin(number, size, store)
    group = session.current().group_of(CommGroup.PP_GROUP.value)
    other = 1 - pp_rank()
    tensor = torch.full((8,), float(number))
    buffer = torch.empty(8)
    works = [
        dist.isend(tensor, group=group, group_dst=other, tag=0),
        dist.irecv(buffer, group=group, group_src=other, tag=0),
    ]
    if pp_rank() == 0:
        comm.send("word", 1, RankType.PP_RANK)
        word = comm.recv_from(1, RankType.PP_RANK)
    else:
        word = comm.recv_from(0, RankType.PP_RANK)
        comm.send(word + "s", 0, RankType.PP_RANK)
    total = comm.allgather(number, CommGroup.PP_GROUP)
    for work in works:
        work.wait()
    return word, total, float(buffer[0])


def test_messages_never_meet_those_of_a_pipeline(world, store):
    """Each arrives where it was asked for, though both use tag 0 between the same ranks."""
    for number, (word, total, received) in enumerate(world.run(_beside_a_pipeline, store)):
        first = number // 2 * 2

        assert ("word" if number % 2 else "words") == word
        assert [first, first + 1] == total
        assert number ^ 1 == received


def _late(number, size, axis, path):
    """Rank 1 comes to its barrier when all ranks of other groups have passed theirs."""
    _begin(number, size, "")
    notes = dist.FileStore(path, size)
    barrier = {Axis.WORLD: comm.barrier, Axis.MP: comm.mp_barrier, Axis.DP: comm.dp_barrier}[axis]
    if number == 1:
        others = set(range(size)) - set(session.current().members(axis))
        if others:
            keys = [f"passed/{other}" for other in others]
            notes.wait(keys, timedelta(seconds=SECONDS))
        notes.set("late", "here")
    barrier()
    has_waited = notes.check(["late"])
    notes.set(f"passed/{number}", "yes")
    comm.barrier()
    return has_waited


@pytest.mark.parametrize(
    ("axis", "waited"),
    [
        (Axis.WORLD, [True, True, True, True]),
        (Axis.MP, [True, True, False, False]),
        (Axis.DP, [False, True, False, True]),
    ],
)
def test_a_barrier_waits_for_the_last_of_its_group(world, tmp_path, axis, waited):
    """Rank 1 is late; its world, its replica or its stage waits for it, and nobody else."""
    assert waited == world.run(_late, axis, str(tmp_path / "notes"), deadline=SECONDS)


def _from_one(obj):
    return broadcast_object(obj, 1, session.current().group_of(Axis.PP))


def _unpicklable(number, size, store):
    _begin(number, size, store)
    bad = (lambda: None) if number == 1 else "fine"
    answers = []
    for attempt in (
        lambda: _from_one(bad) if number < 2 else "idle",
        lambda: comm.allgather(bad),
        lambda: comm.send(bad, 0) if number == 1 else number == 0 and comm.recv_from(1),
    ):
        try:
            answers.append(attempt())
        except UnsentError as error:
            answers.append(error.sender)
        except Exception as error:  # as pickle raises it
            answers.append(type(error).__name__)
    comm.barrier()
    return answers


def test_what_cannot_be_sent_is_an_error_for_all_who_wait_for_it(world, store):
    """The sender has pickle's own; others learn from whom nothing comes, and go on."""
    answers = world.run(_unpicklable, store, deadline=SECONDS)

    assert ["rank 1"] * 3 == answers[0]
    assert all("Error" in each for each in answers[1])
    assert "rank 1" == answers[2][1]
    assert ["idle", False] == [answers[3][0], answers[3][2]]


def _wrong(number, size):
    _begin(number, size, "")
    attempts = (
        lambda: comm.send("x", 2),
        lambda: comm.send("x", number),
        lambda: comm.recv_from(0, RankType.TP_RANK),
        lambda: comm.recv_from(True),
        lambda: comm.send("x", 0, CommGroup.WORLD),
        lambda: comm.broadcast("x", RankType.WORLD_RANK),
        lambda: comm.allgather("x", "WORLD"),
    )
    refusals, text = [], ""
    for attempt in attempts:
        with pytest.raises(OptionError) as caught:
            attempt()
        text = text or str(caught.value)
        refusals.append((caught.value.about, caught.value.kind))
    return refusals, text


def test_wrong_ranks_and_groups_are_refused_before_anything_is_sent(world):
    """Each error is about the argument, and says whether it is unknown or this rank itself."""
    expected = [
        (("dest",), "unknown"),
        (("dest",), "this_rank"),
        (("src",), "this_rank"),
        (("src",), "unknown"),
        (("rank_type",), "unknown"),
        (("group",), "unknown"),
        (("group",), "unknown"),
    ]

    text = "dest is 2: the group has ranks 0 to 1. Pass the number of a rank of this group."

    assert [(expected, text)] * 2 == world.run(_wrong, size=2)


def _alone(number, size):
    session.init({"partitions": 1})
    comm.broadcast("nobody hears this")
    comm.barrier()
    comm.dp_barrier()
    comm.mp_barrier()
    mine = object()
    return (
        broadcast_object(mine, 0, dist.group.WORLD) is mine,
        comm.allgather(1),
        object_collectives.all_gather_object(2, dist.group.WORLD),
    )


def test_one_rank_talks_to_nobody(world):
    """All of it works in a world of one."""
    assert [(True, [1], [2])] == world.run(_alone, size=1)
