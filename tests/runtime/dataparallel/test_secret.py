# SPDX-License-Identifier: Apache-2.0
"""The job's secret: from a file where one is given, never shown, refused when it differs."""

import io
import os
from contextlib import redirect_stderr
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from engine_faults import fault_fields
from ports import free_port

from sagemaker_dist.errors import LaunchError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.protection import (
    UNPROTECTED,
    warn_unprotected,
    warn_weak,
)
from smdist.dataparallel.rendezvous.secret import read_secret


def reduce_with_secret(rank, size, folder, differ):
    """Leave the group the world made and make one with a secret from a file."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    os.environ["SMDIST_SECRET_FILE"] = f"{folder}/{rank if differ else 0}"
    try:
        dist.init_process_group(
            "smdist", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=10)
        )
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor.sum().item()
    except dist.DistBackendError as error:
        return str(error), fault_fields("kind", "culprit")
    finally:
        del os.environ["SMDIST_SECRET_FILE"]


@pytest.fixture
def secrets(tmp_path):
    for number in range(2):
        path = tmp_path / str(number)
        path.write_text(f"the secret number {number}\n")
        path.chmod(0o600)
    return str(tmp_path)


def test_a_secret_from_a_file_serves(world, secrets):
    """The same file on every rank."""
    assert [6.0, 6.0] == world.run(reduce_with_secret, secrets, False, size=2)


def keys_of_a_start(rank, size, port, folder, having):
    """Start over torch's TCPStore; return what was logged, and what a stranger reads afterwards."""
    dist.destroy_process_group()
    warn_unprotected.cache_clear()
    log = io.StringIO()
    if rank in having:
        os.environ["SMDIST_SECRET_FILE"] = f"{folder}/0"
    try:
        store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=20))
        with redirect_stderr(log):
            dist.init_process_group("smdist", store=store, rank=rank, world_size=size)
        dist.barrier()
        stranger = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
        found = {
            key.rpartition("smdist/1/")[2]: len(stranger.get(key)) for key in stranger.list_keys()
        }
        dist.barrier()
        return log.getvalue(), found
    except LaunchError as error:
        return error.kind, list(error.about)
    finally:
        os.environ.pop("SMDIST_SECRET_FILE", None)


def test_a_store_has_no_secret_if_the_ranks_have_one(world, secrets):
    """Only 16 random bytes, which tell two starts apart; as text they take up to 32."""
    answers = world.run(keys_of_a_start, free_port(), secrets, (0, 1), size=2)

    for log, found in answers:
        assert "" == log
        assert found["session/0"] <= 32


def test_without_a_secret_rank_0_says_so_once_and_its_own_is_gone_once_read(world, secrets):
    answers = world.run(keys_of_a_start, free_port(), secrets, (), size=2)

    assert [UNPROTECTED, ""] == [log for log, _ in answers]
    assert 1 == len(UNPROTECTED.splitlines())
    for _, found in answers:
        assert "who/all" in found
        assert "session/0" not in found


@pytest.mark.parametrize(
    ("mode", "secret", "rank", "lines"),
    [
        (0o600, b"s" * 16, 0, []),
        (0o640, b"s" * 16, 0, ["mode 0640. Change the mode to 0600"]),
        (0o600, b"abc", 0, ["only 3 bytes"]),
        (0o604, b"", 0, ["mode 0604", "only 0 bytes"]),
        (0o604, b"", 1, []),
        (0o604, b"", 2, ["users of algo-2"]),
    ],
)
def test_a_weak_secret_is_named_in_the_log(tmp_path, capsys, mode, secret, rank, lines):
    """A short one by rank 0, a file that others can read by the first rank of its host."""
    path = tmp_path / "secret"
    path.touch(mode)
    path.chmod(mode)

    warn_weak(secret, RankConfig(host_label="algo-2", secret_file=path), rank, [0, 0, 1, 1])

    logged = capsys.readouterr().err.splitlines()
    assert len(lines) == len(logged)
    assert all(part in line for part, line in zip(lines, logged, strict=True))


def test_options_that_need_the_secret_are_named_where_it_is_known(capsys):
    warn_unprotected.cache_clear()

    warn_unprotected(("SMDIST_ENCRYPT=1", "SMDIST_INTEGRITY=mac"))

    first, second = capsys.readouterr().err.splitlines()
    assert UNPROTECTED == f"{first}\n"
    assert "SMDIST_ENCRYPT=1 and SMDIST_INTEGRITY=mac cannot keep out" in second


@pytest.mark.parametrize("having", [0, 1])
def test_a_secret_on_some_ranks_alone_is_refused(world, secrets, having):
    """On all ranks and with the reason, before any of them connects."""
    answers = world.run(keys_of_a_start, free_port(), secrets, (having,), size=2)

    assert [("conflict", ["SMDIST_SECRET_FILE"])] * 2 == answers


def test_ranks_with_different_secrets_do_not_talk(world, secrets, capfd):
    """Each rank raises soon, and nothing shows a secret."""
    (first, one), (second, other) = world.run(reduce_with_secret, secrets, True, size=2)
    shown = capfd.readouterr()

    assert [("lost", 1), ("lost", 0)] == [one, other]
    assert "does not know the job's secret" in second
    assert second.partition(": ")[2].startswith("rank 0 on ")
    assert "SMDIST_SECRET_FILE" in second
    assert "share of the data" not in second
    assert "secret number" not in first + second + shown.out + shown.err


@pytest.mark.parametrize("content", [None, "", "  \n", os.mkfifo, os.mkdir])
def test_no_secret_in_the_file_is_said(tmp_path, content):
    """A missing or empty file, a folder, and a FIFO, which nobody may ever write."""
    path = tmp_path / "secret"
    if callable(content):
        content(path)
    elif content is not None:
        path.write_text(content)

    with pytest.raises(LaunchError) as caught:
        read_secret(path)

    assert ("SMDIST_SECRET_FILE",) == caught.value.about


def test_a_secret_from_the_environment(tmp_path):
    """White space around it does not count; a file with the same text is no second secret."""
    path = tmp_path / "secret"
    path.write_text("one text\n")

    assert b"one text" == read_secret(None, " one text\n") == read_secret(path, "one text")
    assert read_secret(None) is read_secret(None, " ") is None


def test_two_different_secrets_are_refused_and_not_shown(tmp_path):
    path = tmp_path / "secret"
    path.write_text("first text")
    with pytest.raises(LaunchError) as caught:
        read_secret(path, "second text")

    assert ("conflict", ("SMDIST_SECRET",)) == (caught.value.kind, caught.value.about)
    assert not [text for text in ("first text", "second text") if text in str(caught.value)]
