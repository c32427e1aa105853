# SPDX-License-Identifier: Apache-2.0
"""The first operation in which ranks differ is found in their histories."""

import gzip
import json
import tarfile

import pytest
from histories import history, operation, write_histories

from sagemaker_dist.debugging import find_divergences, read_dumps, report_of, sentences
from sagemaker_dist.debugging.operations import parse_history
from sagemaker_dist.errors import JobError

STACKS = """Thread 0x00007f0000000001 (most recent call first):
  File "threading.py", line 1 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "train.py", line 7 in evaluate
  File "train.py", line 90 in <module>
"""


def found(*histories):
    return find_divergences(
        parse_history(json.dumps(each).encode(), "a test") for each in histories
    )


def test_ranks_that_agree_do_not_differ():
    same = [operation(1), operation(2, kind="barrier", op=...), operation(3, ended=False)]

    assert [] == found(history(0, same), history(1, same))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bytes": 404}, "all_reduce(sum, float32, 101)"),
        ({"bytes": 402}, "all_reduce(sum, float32, 402 bytes)"),
        ({"dtype": "float16"}, "all_reduce(sum, float16, 200)"),
        ({"op": "max"}, "all_reduce(max, float32, 100)"),
        ({"kind": "barrier", "op": ...}, "barrier()"),
        ({"kind": "broadcast", "op": ..., "root": 1}, "broadcast(float32, 100, root 1)"),
    ],
)
def test_the_first_different_call_is_named(change, text):
    (first,) = found(
        history(0, [operation(1), operation(2), operation(3, bytes=8)]),
        history(1, [operation(1), operation(2, **change), operation(3)]),
    )

    assert ("different", 0, 1) == (first.kind, first.group, first.sequence)
    assert {"all_reduce(sum, float32, 100)": (0,), text: (1,)} == first.calls
    assert {} == first.missing
    assert 102.0 == first.waits_since


def test_a_barrier_has_no_dtype():
    barriers = [operation(1, kind="barrier", op=..., dtype=name) for name in ("uint8", "float32")]

    assert [] == found(*(history(rank, [each]) for rank, each in enumerate(barriers)))


def test_a_rank_that_has_not_come_is_named_with_its_last_operation():
    (first,) = found(
        history(0, [operation(1), operation(2, ended=False)], size=3),
        history(1, [operation(1)], size=3),
        history(2, [operation(1), operation(2, ended=False)], size=3),
    )

    assert ("missing", 1) == (first.kind, first.sequence)
    assert [1] == list(first.missing)
    assert 0 == first.missing[1].sequence


@pytest.mark.parametrize(
    ("written_at", "change", "is_reported"),
    [
        (101.9, {}, False),  # before the other rank calls it
        (102.9, {}, False),
        (103.1, {}, True),
        (102.9, {"reason": "failure"}, True),
        (102.9, {"fault": {"kind": "timeout", "culprit": 1, "operation": "", "text": ""}}, True),
    ],
)
def test_a_rank_that_comes_a_little_later_is_no_difference(written_at, change, is_reported):
    """Rank 0 calls its second operation at second 102."""
    both = found(
        history(0, [operation(1), operation(2, ended=False)], written_at=103.5, **change),
        history(1, [operation(1)], written_at=written_at),
    )

    assert is_reported == bool(both)


def test_a_rank_without_any_operation_is_missing_too():
    (first,) = found(history(0, [operation(1, ended=False)]), history(1, []))

    assert {1: None} == first.missing


def test_forgotten_operations_are_no_difference():
    """Rank 1 has had a thousand operations in another group, and keeps the last ones alone."""
    kept = [operation(number, 900 + number, group=5) for number in range(400, 1400)]
    groups = {"0": [0, 1], "5": [1]}

    assert [] == found(history(0, [operation(1)]), history(1, kept, groups=groups))


def test_only_what_all_still_know_is_compared():
    old = [operation(number) for number in range(1, 4)]
    new = [operation(number) for number in range(3, 1003)]
    (first,) = found(history(0, old), history(1, new))

    assert 3 == first.sequence
    assert [0] == list(first.missing)


def test_parts_of_a_call_are_compared_in_their_order():
    (first,) = found(
        history(0, [operation(1), operation(2, 0, part=1, bytes=8)]),
        history(1, [operation(1), operation(2, 0, part=1, bytes=12)]),
    )

    assert (0, 1) == (first.sequence, first.part)


def test_groups_are_compared_apart_and_messages_not_at_all():
    groups = {"0": [0, 1, 2], "7": [1, 2]}
    message = {"kind": "send", "op": ..., "peer": 1, "tag": 0}
    (first,) = found(
        history(0, [operation(1), operation(2, 0, **message)], size=3, groups={"0": [0, 1, 2]}),
        history(1, [operation(1), operation(2, 0, group=7)], size=3, groups=groups),
        history(2, [operation(1), operation(2, 0, group=7, bytes=8)], size=3, groups=groups),
    )

    assert 7 == first.group


def test_a_rank_without_a_file_is_unknown():
    (first,) = found(
        history(0, [operation(1, ended=False)], size=3), history(2, [], size=3)
    )  # fmt: skip

    assert (1,) == first.unknown
    assert [2] == list(first.missing)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"version": 2}',
        json.dumps(history(0, [{"number": 1}])).encode(),
        json.dumps(history(0, [operation(1, "0")])).encode(),
        json.dumps(history(0, [operation(1)], groups={"x": []})).encode(),
    ],
)
def test_another_file_is_refused_by_its_name(content):
    with pytest.raises(JobError) as caught:
        parse_history(content, "operations-rank-9.json")

    assert "operations-rank-9.json" in caught.value.what
    assert "unreadable" == caught.value.kind


def test_the_report_says_it_in_sentences_and_as_data(tmp_path):
    folder = write_histories(
        tmp_path / "algo-1" / "smdist-debug",
        history(0, [operation(1), operation(2, ended=False)], size=4),
        history(1, [operation(1)], size=4),
        history(3, [operation(1), operation(2, ended=False)], size=4),
    )
    (folder / "stacks-rank-1.txt").write_text(STACKS)
    (folder / "state-rank-2.json").write_text('{"letter": "T", "text": "has been stopped"}')
    dumps = read_dumps(tmp_path)

    assert [
        "rank 2: has been stopped",
        "group 0: rank 1 has not called operation 1",
        "  ranks 0 and 3 called all_reduce(sum, float32, 100)",
        "  rank 1 has not called it; its last: all_reduce(sum, float32, 100), operation 0 of"
        " group 0",
        '  rank 1 is at: File "train.py", line 7 in evaluate (stacks-rank-1.txt)',
        "no history: rank 2 of 4 ranks",
        "rank 0 on algo-1: in operation 1 of group 0, all_reduce(sum, float32, 100), for 98.0 s",
        "rank 3 on algo-4: in operation 1 of group 0, all_reduce(sum, float32, 100), for 98.0 s",
    ] == list(sentences(dumps))
    report = report_of(dumps)
    json.dumps(report)
    assert [2] == report["without_history"]
    assert [0, 3] == report["divergences"][0]["calls"][0]["ranks"]
    assert 1 == report["divergences"][0]["missing"][0]["rank"]


@pytest.mark.parametrize(
    ("second", "first_line"),
    [
        ({"fault": {"text": "rank 0 is gone"}}, "rank 1 failed: rank 0 is gone"),
        ({"written_at": 260.0}, "rank 0 on algo-1: its files are 60 s older than others"),
        ({"size": 3}, "no history: rank 2 of 3 ranks"),
        ({}, "all ranks that have left a history called the same operations"),
    ],
)
def test_the_first_line_is_what_matters(tmp_path, second, first_line):
    """A rank that failed, is silent or is unknown comes before the ranks that agree."""
    write_histories(tmp_path, history(0, [operation(1)]), history(1, [operation(1)], **second))

    assert first_line == next(sentences(read_dumps(tmp_path)))


def test_a_file_that_is_too_long_is_left_out_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr("sagemaker_dist.debugging.dump_files.MAX_BYTES", 10)
    dumps = read_dumps(write_histories(tmp_path, history(0, [])))

    assert {} == dumps.histories
    assert "is longer than 10 bytes" in list(sentences(dumps))[-1]


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.timeout(30)
def test_an_archive_that_is_too_long_is_cut_with_a_note(tmp_path, kind):
    """Neither a file nor a header of two gigabytes is read; what comes before it is."""
    folder = write_histories(tmp_path / "smdist-debug", history(0, []))
    long = tarfile.TarInfo("long")
    long.size, long.type = 2 << 30, kind
    with tarfile.open(tmp_path / "output.tar", "w") as archive:
        archive.add(folder, "smdist-debug")
        archive.fileobj.write(long.tobuf(tarfile.GNU_FORMAT))  # its content is missing
    packed = gzip.compress((tmp_path / "output.tar").read_bytes())
    (tmp_path / "job.tar.gz").write_bytes(packed)
    dumps = read_dumps(tmp_path / "job.tar.gz")

    assert [0] == list(dumps.histories)
    assert "is cut" in dumps.notes[0]


def test_links_are_not_followed(tmp_path):
    folder = write_histories(tmp_path / "elsewhere", history(0, []))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "operations-rank-0.json").symlink_to(folder / "operations-rank-0.json")

    assert {} == read_dumps(tmp_path / "job").histories
