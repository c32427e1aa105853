# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one layout is loaded under every other, and training continues equally."""

import errno
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import batch, load_and_train, loaded_by, make, pairs, running, saved_by

from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    SkippedCheckpointWarning,
    gather_state_dict,
    resume_from_checkpoint,
    save_checkpoint,
)
from smdist.modelparallel.torch.checkpoint.dcp_store import ShardWriter


def test_every_pair_goes_on_alike(world, tmp_path):
    """One process without smp, replicas with shards, virtual stages; all layouts: `pairs`."""
    found = pairs(world, tmp_path, ["plain", "sharded", "virtual"])

    assert 9 == len(found)
    assert 1e-5 > max(found.values())


def test_file_of_the_whole_goes_on_alike(world, tmp_path):
    """partial=False holds the optimizer too, and any script reads the model."""
    expected = saved_by(world, "sharded", tmp_path)
    found = [loaded_by(world, n, tmp_path, ["sharded"], partial=False) for n in ("two", "plain")]
    model, _, _ = make(5)
    document = torch.load(tmp_path / "sharded", weights_only=True)

    for losses in found:
        assert expected == pytest.approx(losses["sharded"], abs=1e-5)
    assert [] == model.load_state_dict(document["model"]).missing_keys


def parameters_survive(rank, size, name, folder):
    with running(name, seed=0) as run:
        run.steps(2)
        save_checkpoint(folder, 1, model=run.model, optimizer=run.optimizer)
        before = gather_state_dict(run.model)
    with running(name, seed=1) as run:
        resume_from_checkpoint(folder, model=run.model, optimizer=run.optimizer)
        after = gather_state_dict(run.model)
        on_first = gather_state_dict(run.model, to_rank0=True)
    same = all(torch.equal(before[key], after[key]) for key in before)
    return same, len(after), len(on_first), after["spare"][0].item(), after["head.weight"].dtype


@pytest.mark.parametrize("name", ["sharded"])
def test_parameters_are_the_same_bit_by_bit(world, tmp_path, name):
    """Tied, frozen and unused ones, and buffers, too; aliases are there."""
    found = world.run(parameters_survive, name, str(tmp_path), deadline=60)
    count = len(make(0)[0].state_dict())

    for rank, answer in enumerate(found):
        assert (True, count, 0 if rank else count, 2.0, torch.float32) == answer


def fails_on_one_rank(rank, size, folder):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with running("two", seed=0) as run:
        save_checkpoint(folder, "old", model=run.model, user_content="old")
        write, ShardWriter.write_data = (
            ShardWriter.write_data,
            full if rank == 1 else ShardWriter.write_data,
        )
        try:
            save_checkpoint(folder, "new", model=run.model)
        except CheckpointError as error:
            told = error.kind, error.ranks, str(error)
        finally:
            ShardWriter.write_data = write
        return *told, resume_from_checkpoint(folder, model=run.model)


def test_failure_of_one_rank_is_that_of_all(world, tmp_path):
    """The error has the rank and the cause, and the older checkpoint stays the newest."""
    answers = world.run(fails_on_one_rank, str(tmp_path), size=2)

    assert answers[0] == answers[1]
    assert (
        "file",
        (1,),
        f"checkpoint 'new' cannot be written to {str(tmp_path)!r}: rank 1: No space left on device."
        " Free space, or save to another path; older checkpoints are unchanged.",
        "old",
    ) == answers[0]
    assert [] == list((tmp_path / "new_partial").iterdir())


def saves_on_its_own_host(rank, size, folder):
    own = f"{folder}/host{rank}"
    with running("two", seed=0) as run:
        run.steps(3)
        save_checkpoint(own, "two", True, run.model, run.optimizer, {"from": "two"},
                        scheduler=run.scheduler, data=run.data)  # fmt: skip
        try:
            resume_from_checkpoint(own, model=run.model, optimizer=run.optimizer)
        except CheckpointError as error:
            return run.steps(2), error.kind


def test_hosts_without_a_common_folder(world, tmp_path):
    """Each keeps what its ranks wrote; copied to one place it is one checkpoint."""
    answers = world.run(saves_on_its_own_host, str(tmp_path), size=2, hosts="ab")
    losses, kind = answers[0]
    hosts = [tmp_path / "host0", tmp_path / "host1"]
    names = [{str(f.relative_to(host)) for f in host.rglob("*") if f.is_file()} for host in hosts]
    for host in hosts:
        shutil.copytree(host, tmp_path / "all", dirs_exist_ok=True)
    found = load_and_train(0, 1, "plain", str(tmp_path / "all"), ["two"])

    assert set() == names[0] & names[1]
    assert "missing_file" == kind
    assert losses == pytest.approx(found["two"], abs=1e-5)
    with pytest.raises(CheckpointError) as caught:
        resume_from_checkpoint(hosts[0], "two", model=make(1)[0], load_optimizer=False)

    [name] = caught.value.about
    assert ("incomplete", True) == (caught.value.kind, name.endswith("_1_0.distcp"))


def draws(rank, size, name, folder):
    """Return the random numbers that each rank draws after a save or a resumption."""
    with running(name, seed=rank) as run:
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        if Path(folder, "newest").exists():
            resume_from_checkpoint(folder, model=run.model)
        else:
            save_checkpoint(folder, 1, model=run.model)
        return random.random(), np.random.rand(), torch.rand(1).item()


def test_random_states_go_on(world, tmp_path):
    """Each rank's own under the same layout, rank 0's under another."""
    saved = world.run(draws, "two", str(tmp_path), size=2)
    same = world.run(draws, "two", str(tmp_path), size=2)
    other = world.run(draws, "one", str(tmp_path), size=1)

    assert saved[0] != saved[1]
    assert saved == same
    assert saved[:1] == other


def wrong_model(rank, size, folder):
    with running("two", seed=0) as run:
        save_checkpoint(folder, 1, model=run.model, optimizer=run.optimizer)
    with running("two", seed=1, cuts=False) as run:
        run.model.module.spare = torch.nn.Parameter(torch.ones(4))
        try:
            resume_from_checkpoint(folder, model=run.model, load_optimizer=False)
        except ValueError as error:
            return error.about, error.kind, run.model.is_cut


def test_wrong_model_is_told_before_it_is_cut(world, tmp_path):
    """The error is raised at once on every rank, not in the first step."""
    found = world.run(wrong_model, str(tmp_path), size=2)

    assert [(("spare",), "shape", False)] * 2 == found


def test_positions_of_other_replicas_are_refused(tmp_path):
    """Two replicas at two places in their data are not one."""
    from smdist.modelparallel.torch.checkpoint.checkpoint_ranks import RankReplica

    place = RankReplica(rank=0, replica=0, num_replicas=1, layout={}, run={})

    assert {"at": 1} == place.data_of([(0, {"at": 1}), (1, {"at": 1})], 2)
    with pytest.raises(CheckpointError) as caught:
        place.data_of([(0, {"at": 1}), (1, {"at": 2})], 2)
    assert ("data",) == caught.value.about
    assert 2 == len(batch(0))


def differing_buffers(rank, size, folder):
    with running("two_by_two", seed=0) as run:
        for piece in run.model.stages.values():
            for buffer in piece.buffers():
                buffer.fill_(100 + run.model.groups.rdp_rank)
        save_checkpoint(folder, 1, model=run.model)


def test_buffers_are_those_of_the_first_replica(world, tmp_path):
    """Each replica has its own: what is saved is of one of them."""
    world.run(differing_buffers, str(tmp_path))
    model, _, _ = make(1)
    resume_from_checkpoint(tmp_path, model=model)

    assert 100 == model.seen.count


def foreign_optimizer(rank, size, folder):
    with running("two", seed=0) as run:
        if rank == 1:
            run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        try:
            save_checkpoint(folder, 1, model=run.model, optimizer=run.optimizer)
        except CheckpointError as error:
            return error.about, error.kind, error.ranks


def test_parameters_of_something_else_on_one_rank_are_told_on_all(world, tmp_path):
    """No rank waits for another."""
    found = world.run(foreign_optimizer, str(tmp_path), size=2)

    assert [(("optimizer",), "unknown", (1,))] * 2 == found


class Config:
    """Class of a script."""


def corrupt_on_one_rank(rank, size, folder):
    """Load after the values of rank 1 in the newest checkpoint have changed; save a class."""
    with running("two", seed=0) as run:
        for tag in ("old", "new"):
            save_checkpoint(folder, tag, model=run.model, user_content=tag)
        if rank == 0:
            [file] = (Path(folder) / "new_partial").glob("*_1_0.distcp")
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        torch.distributed.barrier()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SkippedCheckpointWarning)
            content = resume_from_checkpoint(folder, model=run.model, load_optimizer=False)
        skipped = [each.tag for one in caught for each in one.message.skipped]
        try:
            save_checkpoint(folder, "no", model=run.model, user_content={"a": Config()})
        except CheckpointError as error:
            return content, skipped, error.about, error.kind


def test_one_rank_that_reads_corrupt_values_sends_all_to_the_older(world, tmp_path):
    """No rank keeps values of the newest one; a refused object is the same error everywhere."""
    found = world.run(corrupt_on_one_rank, str(tmp_path), size=2)

    for rank, answer in enumerate(found):
        expected = ("old", [] if rank else ["new"], ("user_content", "a"), "unsafe")
        assert expected == answer
