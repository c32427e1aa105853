# SPDX-License-Identifier: Apache-2.0
"""Runs on mutated inputs: they repeat, they fail where the target fails, and nothing hangs."""

import sys
import time
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mutation
import readers
from mutation import MOST_BYTES, Mutations, StuckInput, execute

CORPUS = [b"", b"abcdefgh", bytes(range(256)) * 4]


@pytest.fixture
def target(monkeypatch):
    """Function that makes another function the target `a`."""

    def set_target(function):
        monkeypatch.setitem(readers.TARGETS, "a", function)

    return set_target


def test_one_seed_makes_the_same_inputs_and_another_seed_others():
    first, again, other = (
        [mutations.next() for _ in range(200)]
        for mutations in (Mutations(CORPUS, 1), Mutations(CORPUS, 1), Mutations(CORPUS, 2))
    )
    assert first == again != other
    assert len(set(first)) > 150
    assert max(map(len, first)) <= MOST_BYTES


def test_the_number_of_executions_is_exact(target, tmp_path, capsys):
    runs = count()
    target(lambda source: next(runs))

    assert 2500 == execute("a", Mutations(CORPUS, 1), 2500, 60, f"{tmp_path}/a-")
    assert next(runs) == 2500
    assert "number_of_executed_units: 2500" in capsys.readouterr().out
    assert [] == list(tmp_path.iterdir())


def test_an_input_that_fails_is_kept_and_fails_again(target, tmp_path, capsys):
    def fail(source):
        if source.bytes(3) == b"abx":
            raise ZeroDivisionError

    target(fail)
    with pytest.raises(ZeroDivisionError):
        execute("a", Mutations(CORPUS, 1), 1_000_000, 60, f"{tmp_path}/a-")
    (kept,) = tmp_path.iterdir()
    with pytest.raises(ZeroDivisionError):
        readers.run("a", kept.read_bytes())
    assert "number_of_executed_units: " in capsys.readouterr().out


def test_an_input_that_takes_for_ever_is_kept(target, tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "MOST_SECONDS", 1)

    def hang(source):
        while True:
            source.byte()

    target(hang)
    begin = time.monotonic()
    with pytest.raises(StuckInput):
        execute("a", Mutations(CORPUS, 1), 10, 60, f"{tmp_path}/a-")
    assert time.monotonic() - begin < 30
    assert len(list(tmp_path.iterdir())) == 1
