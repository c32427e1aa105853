# SPDX-License-Identifier: Apache-2.0
"""Pipe mode: the data that readers get, and threads that never wait forever."""

import gzip
import os
import threading
import time
from random import Random

import pytest
from channels import channel
from local_jobs import run

from sagemaker_dist.runners.local.data.pipes import Pipe, Stream

pytestmark = pytest.mark.timeout(120)

READ = """
    import json
    epochs = [(base / f"input/data/a_{epoch}").read_bytes().decode() for epoch in range(3)]
    ahead = [(base / f"input/data/a_{epoch}").is_fifo() for epoch in range(4)]
    there = (base / "input/data/a").exists()
    (base / "model" / f"{host}.json").write_text(json.dumps([epochs, ahead, there]))
"""


@pytest.mark.parametrize("is_here", [True, False])
def test_a_pipe_carries_all_objects_in_each_epoch(seen, put, data, is_here):
    """The next FIFO always exists, the one of a past epoch does not, and there is no directory."""
    put(**{"b": "2 ", "a/x": "1 ", "c": "3" * 300_000})
    uri, whole = (data, "1 2 3") if is_here else ("s3://bucket", "1 2 " + "3" * 300_000)
    (found,) = seen(READ, channel(uri, mode="Pipe"))
    epochs, ahead, is_there = found

    assert [whole] * 3 == epochs
    assert ahead[3]
    assert not any(ahead[:2])
    assert not is_there


def test_a_pipe_carries_the_part_of_its_host(seen, put):
    put(a="0", b="1", c="2")
    found = seen(READ, channel("s3://bucket", mode="Pipe", distribution="ShardedByS3Key"), hosts=2)

    assert [["02"] * 3, ["1"] * 3] == [epochs for epochs, _, _ in found]


def test_a_shuffled_pipe_carries_everything_in_an_order_of_the_seed(seen, put):
    put(**{letter: letter for letter in "abcdefgh"})
    (found,) = seen(READ, channel("s3://bucket", mode="Pipe", ShuffleConfig={"Seed": 3}))
    epochs = found[0]

    assert [sorted("abcdefgh")] * 3 == [sorted(epoch) for epoch in epochs]
    assert 3 == len(set(epochs))


def test_a_pipe_unpacks(seen, put):
    put(a=gzip.compress(b"1"), b=gzip.compress(b"2"))
    (found,) = seen(READ, channel("s3://bucket", mode="Pipe", CompressionType="Gzip"))

    assert ["12"] * 3 == found[0]


def test_who_closes_early_gets_the_next_epoch(seen, put):
    put(a="1" * 5_000_000)
    (found,) = seen(
        """
        import json
        with (base / "input/data/a_0").open("rb") as pipe:
            first = len(pipe.read(10))
        second = len((base / "input/data/a_1").read_bytes())
        (base / "model" / f"{host}.json").write_text(json.dumps([first, second]))
        """,
        channel("s3://bucket", mode="Pipe"),
    )

    assert [10, 5_000_000] == found


def test_a_pipe_that_nobody_reads_ends_with_the_job(seen, put):
    put(a="1")
    began = time.monotonic()

    assert [1] == seen(
        "(base / 'model' / f'{host}.json').write_text('1')", channel("s3://bucket", mode="Pipe")
    )
    assert time.monotonic() - began < 20


def test_a_pipe_that_breaks_off_fails_the_job(runner, request_for, script, put):
    """The reader of a pipe that fails gets no EOF."""
    put(a=b"no gzip")
    script("(base / 'input/data/a_0').read_bytes()")
    given = channel("s3://bucket", mode="Pipe", CompressionType="Gzip")
    described = run(runner, request_for(hosts=1, InputDataConfig=[given]))

    assert "Failed" == described["TrainingJobStatus"]
    assert (
        "Channel 'a' cannot be read: a: Not a gzipped file (b'no')." == described["FailureReason"]
    )


@pytest.fixture
def pipe(tmp_path):
    """Return a pipe of three files whose thread runs; stop it at the end of the test."""
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 200_000)
    pipe = Pipe(tmp_path, "t", Stream(root=tmp_path / "a"))
    pipe.make(0)
    pipe.start()
    yield pipe
    pipe.stop()


def test_a_feeder_ends_while_its_reader_does_not_read(pipe, tmp_path):
    with (tmp_path / "t_0").open("rb"):
        began = time.monotonic()
        pipe.stop()

        assert time.monotonic() - began < 5
    assert not any(pipe.feed == getattr(each, "_target", 0) for each in threading.enumerate())


def test_a_fifo_that_is_over_is_gone(pipe, tmp_path):
    """Opening a FIFO again after its epoch is an error; the reader does not wait forever."""
    for epoch in range(20):
        assert 200_000 == len((tmp_path / f"t_{epoch}").read_bytes())
        assert not (tmp_path / f"t_{epoch}").exists()


def test_every_user_may_read_a_fifo(pipe, tmp_path):
    """A FIFO is readable for all users, whatever the umask, because containers may run as
    another.
    """
    before = os.umask(0o077)
    try:
        other = Pipe(tmp_path, "u", Stream(root=tmp_path))
        fifo = other.make(0)
        other.stop()
    finally:
        os.umask(before)

    assert 0o644 == (tmp_path / fifo).stat().st_mode & 0o777


def test_epochs_in_which_a_reader_stops_at_random(pipe, tmp_path):
    """No epoch is lost if readers close early; the next FIFO exists before one ends."""
    random = Random(0)
    for epoch in range(100):
        with (tmp_path / f"t_{epoch}").open("rb") as fifo:
            if random.random() < 0.5:
                fifo.read(random.choice([0, 1, 100_000]))
            else:
                assert b"a" * 200_000 == fifo.read()
        assert (tmp_path / f"t_{epoch + 1}").is_fifo()
