# SPDX-License-Identifier: Apache-2.0
"""SIGTERM saves every rank at one step, and the next start goes on from there bit for bit."""

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from error_fields import fields_raised

import smdist.checkpoint
from smdist.checkpoint.interruption import Interruption

EXAMPLE = Path(__file__).parents[3] / "docs/examples/resumable.py"
STEPS = 30


def train(rank, size, folder, interrupted_at):
    """Train the example's steps; this rank gets SIGTERM in step interrupted_at[rank].

    Return the steps done, how often save() was called, the exit code, and the weights.
    """
    import torch

    import smdist.checkpoint.interruption as module

    spec = importlib.util.spec_from_file_location("resumable", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    before = signal.getsignal(signal.SIGTERM)
    module._interruption = Interruption()
    saves, code = [], 0
    training = example.Training(Path(folder))
    training.resume()
    began = training.done

    def save():
        saves.append(training.done)
        training.save()

    smdist.checkpoint.on_interrupt(save)
    try:
        while training.done < STEPS:
            if training.done == interrupted_at.get(rank):
                os.kill(os.getpid(), signal.SIGTERM)
            training.train_step()
            smdist.checkpoint.step()
    except SystemExit as end:
        code = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    weights = torch.cat([each.detach().flatten() for each in training.model.parameters()])
    return began, training.done, saves, code, weights.numpy().tobytes()


def test_the_example_goes_on_bit_for_bit(world, tmp_path):
    """One rank has SIGTERM earlier than the other: both save the same step, once."""
    whole = world.run(train, str(tmp_path / "whole"), {}, size=2)
    step = random.Random().randrange(1, STEPS - 3)
    late = {0: step + 2, 1: step}

    first = world.run(train, str(tmp_path / "two"), late, size=2)
    second = world.run(train, str(tmp_path / "two"), {}, size=2)

    stopped = step + 1
    assert [(0, stopped, [stopped], 143)] * 2 == [each[:4] for each in first]
    assert [(stopped, STEPS, [], 0)] * 2 == [each[:4] for each in second]
    assert whole[0][4] != first[0][4]
    assert {whole[0][4]} == {each[4] for each in (*whole, *second)}, f"interrupted at {step}"


def ask(rank, size, every):
    """Return for each of eight calls whether should_stop() is True; rank 1 is stopped in call 2."""
    import smdist.checkpoint.interruption as module

    before = signal.getsignal(signal.SIGTERM)
    module._interruption = Interruption()
    answers = []
    try:
        for call in range(8):
            answers.append(smdist.checkpoint.should_stop(every))
            if rank == 1 and call == 1:
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    return answers


@pytest.mark.parametrize(("every", "expected"), [(1, 2), (3, 2), (4, 3)])
def test_all_ranks_stop_at_the_same_call(world, every, expected):
    """With `every`, at the next comparison; then without further communication."""
    answers = [call >= expected for call in range(8)]

    assert [answers] * 2 == world.run(ask, every, size=2)


@pytest.fixture
def interruption(monkeypatch):
    """Return a state of its own for one test; the handler of SIGTERM is restored."""
    import smdist.checkpoint.interruption as module

    found = Interruption()
    monkeypatch.setattr(module, "_interruption", found)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_single_process_saves_and_exits(interruption):
    """The handler that was there before is called, too."""
    called = []
    signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    smdist.checkpoint.on_interrupt(lambda: called.append("save"))

    smdist.checkpoint.step()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        smdist.checkpoint.step()

    assert [signal.SIGTERM, "save"] == called
    assert 143 == ended.value.code == smdist.checkpoint.EXIT_CODE


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: smdist.checkpoint.on_interrupt("save"), ("save", "type")),
        (lambda: smdist.checkpoint.step(), ("on_interrupt", "missing")),
        (lambda: smdist.checkpoint.should_stop(every=0), ("every", "option")),
        (lambda: smdist.checkpoint.should_stop(every=True), ("every", "option")),
    ],
)
def test_wrong_calls_are_refused(interruption, call, expected):
    assert [expected] == fields_raised(call)


def test_ranks_must_be_connected_first(interruption, monkeypatch):
    """Ranks that do not know each other would save different steps."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch", None)

    assert [("size", "not_connected")] == fields_raised(smdist.checkpoint.should_stop)
