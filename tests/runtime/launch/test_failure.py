# SPDX-License-Identifier: Apache-2.0
"""One sentence of at most 1,024 characters names the rank that failed first, how and where."""

import os

import pytest

from sagemaker_dist.errors import OptionError, OptionErrors
from sagemaker_dist.runners.local.opt_ml_tree import FAILURE_FIELDS
from smdist.launch.failure_file import (
    MAX_CHARACTERS,
    describe,
    fields_of,
    first_failure,
    shorten,
    with_left_rank,
    write_failure,
    write_loss,
)
from smdist.launch.failure_policy import EndJob
from smdist.launch.guard_protocol import RankFault, Report, exit_status, parse_message, read_fault
from smdist.launch.rank_ends import RankEnds


def report(**parts):
    return Report(**({"rank": 3, "status": 1, "at_seconds": 10.0} | parts))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            {"error": "ValueError: boom", "frame": "train.py:12 in main"},
            "algo-2 rank 3 exited with code 1: ValueError: boom (train.py:12 in main)",
        ),
        ({"rank": None, "status": 7}, "algo-2 exited with code 7"),
        ({"status": -15}, "algo-2 rank 3 was killed by SIGTERM"),
        ({"status": -40}, "algo-2 rank 3 was killed by signal 40"),
        (
            {"status": -15, "stopped": True, "error": "ValueError: boom", "frame": "t.py:1 in f"},
            "algo-2 rank 3 exited with code 1: ValueError: boom (t.py:1 in f)",
        ),
        (
            {"error": "Error: x", "fault": RankFault(kind="left", culprit=4)},
            "rank 4 left while other ranks needed it: algo-2 rank 3 exited with code 1: Error: x",
        ),
        (
            {"error": "Error: x", "fault": RankFault(kind="lost", culprit=4)},
            "algo-2 rank 3 exited with code 1: Error: x",
        ),
        (
            {"error": "RuntimeError: Distributed package doesn't have NCCL built in"},
            "algo-2 rank 3 exited with code 1: RuntimeError: Distributed package doesn't have NCCL"
            ' built in. Without a GPU, pass "smdist" to init_process_group',
        ),
        (
            {"error": "AssertionError: Unknown backend type smdist", "frame": "t.py:1 in f"},
            "algo-2 rank 3 exited with code 1: AssertionError: Unknown backend type smdist"
            " (t.py:1 in f). Add `import smdist.dataparallel.torch` to the script",
        ),
    ],
)
def test_sentence(parts, text):
    assert text == describe(report(**parts), "algo-2")


@pytest.mark.parametrize(
    ("culprit", "elsewhere", "kind", "start"),
    [
        ({"status": 0}, set(), "left", "rank 4 left while other ranks needed it: algo-2 rank 3"),
        ({"status": 0, "stopped": True}, {4}, "lost", "algo-2 rank 3 exited"),
        ({"status": 0, "rank": 5}, {6}, "lost", "algo-2 rank 3 exited"),
        ({"rank": 5}, {4}, "left", "rank 4 left while other ranks needed it: algo-2 rank 3"),
    ],
)
def test_sentence_begins_with_a_rank_that_left_by_os_exit(culprit, elsewhere, kind, start):
    """Its engine does not say that it leaves, so the other rank has lost a connection.

    The launcher of another host says so, if the rank was there.
    """
    victim = report(error="Error: x", fault=RankFault(kind="lost", culprit=4))
    others = [victim, report(**{"rank": 4, **culprit})]
    found = with_left_rank(victim, others, elsewhere.__contains__)

    assert kind == fields_of(found, "algo-2")["kind"]
    assert describe(found, "algo-2").startswith(start)


def test_launchers_tell_each_other_how_their_ranks_ended():
    """A rank that was stopped says nothing about who left."""
    ends = RankEnds()
    for rank, parts in enumerate([{"status": 0}, {"status": 0, "stopped": True}, {"status": 1}]):
        EndJob(ends).on_end(report(rank=rank, **parts), is_stopping=False)

    assert {0: 0, 2: 1} == ends.own()
    assert [True, False] == [EndJob(ends).has_left(rank) for rank in (0, 2)]
    assert not EndJob().has_left(0)


@pytest.mark.parametrize("status", [-9, 137])
def test_out_of_memory_is_suggested(status):
    text = describe(report(status=status, error="epoch 3"), "algo-2")

    assert "run out of memory" in text
    assert text.endswith("Its last output: epoch 3")


@pytest.mark.parametrize("filler", ["x", "ü", "😀", "\udcff"])
def test_long_message_keeps_its_place(filler):
    """The message is cut, the frame stays, and UTF-8 can write it."""
    text = describe(report(error=filler * 5000, frame="train.py:12 in main"), "algo-2")

    assert MAX_CHARACTERS >= len(text)
    assert text.startswith("algo-2 rank 3 exited with code 1: ")
    assert text.endswith("… (train.py:12 in main)")
    assert text.encode()


def test_short_text_is_left_alone():
    assert "x" * MAX_CHARACTERS == shorten("x" * MAX_CHARACTERS)


OWN = {"error": "ValueError: boom", "frame": "train.py:1 in f"}
PEER = {"error": "smdist.PeerError: algo-1 rank 0 left", "frame": "train.py:9 in f"}


@pytest.mark.parametrize(
    ("consequence", "cause"),
    [
        (PEER, OWN),
        ({"error": "torch.distributed.DistBackendError: x"}, OWN),
        ({"error": "RuntimeError: Connection closed by peer [10.0.0.1]:4"}, OWN),
        ({"error": "tf.errors.AbortedError: rank 4 closed its connection"}, OWN),
        ({"fault": RankFault(kind="aborted", culprit=4)}, OWN),
        (
            {"fault": RankFault(kind="aborted", culprit=4)},
            {"fault": RankFault(kind="usage", culprit=3)},
        ),
        ({"fault": RankFault(kind="left", culprit=4)}, OWN | {"fault": RankFault(kind="raised")}),
        ({"fault": RankFault(kind="step", culprit=4)}, {"fault": RankFault(kind="x", culprit=4)}),
        (
            {"fault": RankFault(kind="aborted", culprit=4)},
            OWN | {"stopped": True, "fault": RankFault(kind="usage", culprit=3)},
        ),
        ({"stopped": True, "status": -15}, OWN),
        ({"status": 0}, OWN),
        (PEER, OWN | {"stopped": True}),
        (PEER, OWN | {"stopped": True, "status": -15}),
        ({"stopped": True, "status": -15}, PEER),
        (PEER | {"stopped": True}, PEER),
        (OWN | {"stopped": True, "error": "KeyboardInterrupt"}, PEER),
    ],
)
def test_cause_goes_before_consequence(consequence, cause):
    """A rank that lost a peer or was stopped is not the culprit, though it ended first."""
    first, later = report(**consequence), report(rank=4, at_seconds=12.0, **cause)

    assert later == first_failure([first, later])


def test_earliest_failure_decides():
    early, late = report(at_seconds=1.0), report(rank=1, at_seconds=2.0)

    assert early == first_failure([late, early])
    assert first_failure([report(status=0)]) is None


def test_reports_travel():
    fault = RankFault(
        kind="lost",
        culprit=2,
        exception="DistBackendError",
        operation="barrier",
        late_ranks=({"rank": 2, "last_operation": None},),
    )

    for sent in (report(error="é😀\n", frame="f", stopped=True), report(fault=fault)):
        assert sent == parse_message(sent.encode())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"what": 1}'])
def test_a_fault_that_a_rank_did_not_leave(tmp_path, text):
    """A rank may be killed while it writes."""
    path = tmp_path / "fault.json"

    assert read_fault(path) is None

    path.write_text(text)

    assert read_fault(path) is None


def test_signals_count_from_128():
    assert (0, 7, 137) == (exit_status(0), exit_status(7), exit_status(-9))


def test_the_sdk_knows_every_field():
    """The SDK passes on these fields of failure.json, and no others."""
    late = RankFault(kind="timeout", late_ranks=({"rank": 3},))
    written = fields_of(report(fault=late), "algo-1")
    refused = OptionErrors((OptionError("a", "b", "c"),)).as_dict()

    restarts = {"restarts", "not_restarted"}  # of a job with max_restarts
    assert FAILURE_FIELDS == {*written, *refused, *OptionError("a", "b", "c").as_dict(), *restarts}


def test_only_a_timeout_has_late_ranks():
    assert "late_ranks" not in fields_of(report(fault=RankFault(kind="lost")), "algo-1")


def test_failure_file_is_written_once(tmp_path):
    """What the script wrote itself is kept."""
    write_failure(tmp_path, "ours")
    path = tmp_path / "output/failure"

    assert "ours" == path.read_text()

    path.write_text("theirs")
    write_failure(tmp_path, "ours")

    assert "theirs" == path.read_text()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_the_script_put_in_the_place_of_the_failure_file_is_never_opened(tmp_path, kind):
    """A FIFO would block the launcher for ever, a link would make it write to another file."""
    output, other = tmp_path / "output", tmp_path / "other"
    output.mkdir()
    other.touch()
    for name in ("failure", "failure.json", "lost"):
        os.mkfifo(output / name) if kind == "fifo" else (output / name).symlink_to(other)
    write_failure(tmp_path, "ours", {"rank": 3})
    write_loss(tmp_path, "why")

    assert ["ours", '{"rank": 3}', "why"] == [
        (output / name).read_text() for name in ("failure", "failure.json", "lost")
    ]
    assert "" == other.read_text()


def test_nothing_is_left_beside_a_failure_file_that_cannot_be_written(tmp_path):
    (tmp_path / "output/failure").mkdir(parents=True)
    write_failure(tmp_path, "ours")

    assert [tmp_path / "output/failure"] == list((tmp_path / "output").iterdir())
