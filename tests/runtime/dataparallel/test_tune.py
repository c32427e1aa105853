# SPDX-License-Identifier: Apache-2.0
"""Settings that ranks measure at the start, and settings from the environment."""

import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.errors import LaunchError, OptionError, parts_of
from smdist.dataparallel.rendezvous.autotune import fixed_by
from smdist.dataparallel.torch import _C
from smdist.tuning import TuningConfig

FIXED = {
    "LANES": "3",
    "CHUNK_BYTES": "65536",
    "ONE_SHOT_BYTES": "0",
    "SINGLE_OWNER_BYTES": "4096",
    "ARRIVING_BYTES": "65536",
}
NOTHING = dict.fromkeys(FIXED, "")
LENGTHS = (1, 100, 5_000, 200_001)


def sums(rank, size):
    """The bits of sums of many lengths."""
    generator = torch.Generator().manual_seed(rank)
    values = [torch.randn(length, generator=generator) * 100 for length in LENGTHS]
    for value in values:
        dist.all_reduce(value)
    return values


def test_no_choice_changes_a_bit(world):
    """Measured, or set to anything: what comes out is the same."""
    expected, *_ = world.run(sums, tuning={})
    in_one = {**FIXED, "ONE_SHOT_BYTES": "1048576"}
    by_one = {"SINGLE_OWNER_BYTES": "1048576"}
    for tuning in (FIXED, in_one, by_one):
        for values in world.run(sums, tuning=tuning, hosts="abcd"):
            assert all(map(torch.equal, expected, values))


def test_every_setting_reaches_the_engine():
    """No field is left out on the way from TuningConfig over Fixed to Tuning."""
    chosen = TuningConfig(
        lanes=3,
        chunk_bytes=1 << 16,
        one_shot_bytes=1,
        single_owner_bytes=2,
        arriving_bytes=1 << 17,
        shard_weights=[5],
    )
    engine = _C.Engine(
        0, 1, "127.0.0.1", ["rank 0"], [0], bytes(32), bytes(16), 0, None, None, 10.0
    )
    tuning = engine.probe(0, [0], fixed_by(chosen, [0], _C), 10.0).tuning

    assert asdict(chosen) == {name: getattr(tuning, name) for name in asdict(chosen)}
    assert None not in asdict(chosen).values()


def count_up(rank, size):
    value = torch.ones(4)
    dist.all_reduce(value)
    return value.tolist()


def say_again(rank, size, folder, environ):
    """Make the process group again with these variables; return the output or error of the rank."""
    dist.destroy_process_group()
    with mock.patch.dict(os.environ, {f"SMDIST_{name}": text for name, text in environ.items()}):
        return said_at_start(rank, size, folder)


def said_at_start(rank, size, folder):
    store = dist.FileStore(f"{folder}/store", size)
    with Path(folder, f"said-{rank}").open("w+b") as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            dist.init_process_group("smdist", store=store, rank=rank, world_size=size)
            dist.all_reduce(torch.ones(4))
        except (OptionError, LaunchError) as error:
            dist.distributed_c10d._world.group_count = 0  # as on ranks that took no part
            return error
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return said.read().decode()


@pytest.mark.parametrize(
    ("hosts", "seen"), [("aabb", r"on 2 hosts: (1 lane|\d lanes),"), ("aaaa", "on 1 host: 1 lane,")]
)
def test_rank_0_prints_what_was_found(world, tmp_path, hosts, seen):
    first, *others = world.run(say_again, str(tmp_path), NOTHING, hosts=hosts)

    assert [""] * 3 == others
    assert re.search(f"^smdist: 4 ranks {seen} chunks of ", first, re.MULTILINE)
    assert (" in flight, " in first) == (hosts == "aabb")
    assert float(re.search(r"measured in ([0-9.]+) s", first)[1]) < 10


def test_what_is_set_is_neither_measured_nor_printed(world, tmp_path):
    assert [""] * 4 == world.run(say_again, str(tmp_path), FIXED)


def test_what_is_set_is_kept_while_the_rest_is_measured(world, tmp_path):
    tuning = {**NOTHING, "LANES": "5", "ONE_SHOT_BYTES": "0"}
    first, *_ = world.run(say_again, str(tmp_path), tuning, hosts="aabb")

    assert "5 lanes, " in first
    assert "one-shot all-reduces up to 0 B" in first
    assert float(re.search(r"measured in ([0-9.]+) s", first)[1]) < 10


def count_connections(rank, size):
    """Sockets that lead to the other ranks; torch's store is a file here."""
    dist.all_reduce(torch.ones(1_000_000))
    dist.all_reduce(torch.ones(1_000_000))
    count = sum(map(_is_connection, Path("/proc/self/fd").iterdir()))
    dist.barrier()  # nobody hangs up before
    return count


def _is_connection(path):
    try:
        with socket.socket(fileno=os.dup(int(path.name))) as copy:
            return copy.family == socket.AF_INET and bool(copy.getpeername())
    except OSError:
        return False


@pytest.mark.parametrize("lanes", [1, 4])
def test_hosts_are_joined_by_so_many_lanes(world, lanes):
    counts = world.run(
        count_connections, size=3, hosts="abc", tuning={**FIXED, "LANES": str(lanes)}
    )

    assert [2 * lanes] * 3 == counts


@pytest.mark.parametrize(
    ("weights", "hosts", "fault"),
    [("1,2,3", "aabb", "shard_weights has 3 values"), ("1,3", "aabb", "")],
)
def test_there_is_a_weight_for_each_host(world, weights, hosts, fault):
    tuning = {**FIXED, "SHARD_WEIGHTS": weights}
    for ok, said in world.outcomes(count_up, hosts=hosts, tuning=tuning):
        assert ok == (not fault)
        assert fault in str(said)


def say_unlike(rank, size, folder):
    return say_again(rank, size, folder, {"LANES": str(1 + rank)})


def test_ranks_with_different_options_all_refuse(world, tmp_path):
    for error in world.run(say_unlike, str(tmp_path), size=2, tuning=FIXED):
        assert (("SMDIST_LANES",), "conflict") == (error.about, error.kind)


UNLIKE = {"LANES": "2", "SHARD_WEIGHTS": "1", "FUSION_BYTES": "1048576", "TIMEOUT_SECONDS": "9"}


def say_many_unlike(rank, size, folder):
    return say_again(rank, size, folder, UNLIKE if rank == 1 else dict.fromkeys(UNLIKE, ""))


def test_all_different_options_are_reported_at_once(world, tmp_path):
    unlike = {f"SMDIST_{name}" for name in UNLIKE}
    for error in world.run(say_many_unlike, str(tmp_path), size=3, tuning=FIXED):
        assert unlike == {fault.about[0] for fault in error.faults}
        assert ["conflict"] * 4 == [fault.kind for fault in error.faults]


def say_refused(rank, size, folder, refused):
    wrong = {"LANES": "99", "FUSION_BYTES": "7"}
    return say_again(rank, size, folder, wrong if rank == refused else {})


@pytest.mark.parametrize("refused", [0, 2])
def test_who_is_refused_keeps_nobody_waiting(world, tmp_path, refused):
    """The start timeout is 600 s, and more than the test's deadline."""
    errors = world.run(say_refused, str(tmp_path), refused, size=3, tuning=FIXED, deadline=30)
    own = errors.pop(refused)

    assert {("SMDIST_LANES",), ("SMDIST_FUSION_BYTES",)} == {part.about for part in parts_of(own)}
    for other in errors:
        assert "peer" == other.kind
        assert (
            f"rank {refused} on {socket.gethostname()} could not start: the environment variable"
            " SMDIST_FUSION_BYTES is 7; the environment variable SMDIST_LANES is 99. Correct these"
            " settings of that rank, and start the job again."
        ) == str(other)
