# SPDX-License-Identifier: Apache-2.0
"""A failure anywhere ends the step on all ranks, and all say where it was."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import zoo
from splitting import Pipeline, Split
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.executor import Fault, PassedOn, StepError
from smdist.modelparallel.torch.executor.step_errors import error_text

RANKS, SECONDS = 3, 10
BACKENDS = ["smdist", "gloo"]


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no way back")


class Unit(nn.Module):
    """Does something else when it is told to, in the third microbatch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        object.__setattr__(self, "trouble", {})

    def forward(self, x):
        y = self.linear(x)
        trouble = self.trouble
        if not trouble:
            return y
        trouble["calls"] = trouble.get("calls", 0) + 1
        return trouble["do"](y) if trouble["calls"] == 3 else y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(RANKS))

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("culprit", range(RANKS))
def test_a_unit_fails(world, backend, culprit):
    """All ranks name it; the one where it failed has the exception itself as the cause."""
    found = world.run(failing, culprit, "fail", backend, size=RANKS, deadline=120)

    for rank, told in enumerate(found):
        assert (culprit, culprit, f"{culprit}F2", f"units.{culprit}") == told["place"]
        assert "ValueError: 2 plus 2 is 5" == told["why"]
        assert told["seconds"] < SECONDS
        assert (told["cause"] == ("ValueError", (), "")) == (rank == culprit)


@pytest.mark.parametrize(
    ("trouble", "action", "cause"),
    [
        ("interrupt", "1F2", ("KeyboardInterrupt", (), "")),
        ("exit", "1F2", ("SystemExit", (), "")),
        ("backward", "1B2", ("ArithmeticError", (), "")),
        ("shape", "1F2", ("OptionError", ("units.1",), "shape")),
        ("dtype", "1F2", ("OptionError", ("units.1",), "dtype")),
        ("form", "1F2", ("OptionError", ("units.1",), "varying_result")),
    ],
)
def test_other_troubles(world, trouble, action, cause):
    found = world.run(failing, 1, trouble, "smdist", size=RANKS, deadline=120)

    assert cause == found[1]["cause"]
    assert 1 == len({told["why"] for told in found})
    for rank, told in enumerate(found):
        assert (1, 1, action) == told["place"][:3]
        assert told["seconds"] < SECONDS
        assert (trouble == "interrupt" and rank == 1) == told["is_interrupt"]


def test_the_module_of_a_backward_pass_is_named(world):
    found = world.run(failing, 1, "backward", "smdist", size=RANKS, deadline=120)

    assert {"units.1"} == {told["place"][3] for told in found}


@pytest.mark.parametrize(
    ("wrong", "rank", "cause"),
    [
        ("before", 1, ("ValueError", (), "")),
        ("after", 2, ("ValueError", (), "")),
        ("never", 1, ("OptionError", ("feed",), "not_called")),
        ("twice", 2, ("OptionError", ("feed",), "called_twice")),
        ("swallowed", 0, ("OptionError", ("feed",), "caught_signal")),
        ("result", 2, ("OptionError", ("feed",), "type")),
    ],
)
def test_the_code_around_the_model_fails(world, wrong, rank, cause):
    found = world.run(feeding, wrong, rank, size=RANKS, deadline=120)

    assert cause == found[rank]["cause"]
    assert 1 == len({told["why"] for told in found})
    for told in found:
        assert (rank, rank, f"{rank}F1", "code around the model") == told["place"]
        assert told["seconds"] < SECONDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_is_killed(world, backend):
    """The others name it."""
    outcomes = world.outcomes(failing, 1, "kill", backend, size=RANKS, deadline=120)

    assert "died with exit code -9" in outcomes[1][1]
    for rank in (0, 2):
        is_told, told = outcomes[rank]
        assert is_told, told
        assert ("lost", 1) == (told["kind"], told["gone"])
        assert told["seconds"] < SECONDS


def test_a_rank_is_killed_that_sends_nothing_to_others(world):
    """Ranks that wait for other ranks name the killed one, too."""
    outcomes = world.outcomes(summing_without_one, size=RANKS, deadline=120)

    assert "died with exit code -9" in outcomes[2][1]
    for rank in (0, 1):
        is_told, text = outcomes[rank]
        assert is_told, text
        assert ("lost", rank, 2, "the sum of gradients") == text


def test_what_is_not_an_action_is_guarded(world):
    """A sum of gradients, say: who waits elsewhere ends with the same words."""
    found = world.run(guarding, size=RANKS, deadline=120)

    assert {(2, 2, "the sum of gradients", "the step")} == {told["place"] for told in found}
    assert {"ValueError: no sum"} == {told["why"] for told in found}


def test_a_fault_travels_as_data():
    """All fields, whatever the words are; and one text is golden."""
    fault = Fault(rank=5, pipeline_rank=1, action="1F3", module="h.4", why="it's 'so':\nsee")
    lost = replace(fault, gone=2)
    error = StepError(fault)

    assert fault == Fault.decode(fault.encode())
    assert lost == Fault.decode(lost.encode())
    assert Fault.decode("") is None
    assert Fault.decode('{"exception": "ValueError"}') is None
    assert ("step", 5, None) == (error.kind, error.rank, error.gone)
    assert ("lost", 5, 2) == (StepError(lost).kind, StepError(lost).rank, StepError(lost).gone)
    assert (
        "rank 2 ended early, and rank 5 (pipeline rank 1) lost the connection to it in 1F3 of 'h.4'"
        " (stage 1, forward pass, microbatch 3): it's 'so':\nsee. See the end of the log of rank 2:"
        " the process exited, or it was killed, for example because its host had no memory left."
        == str(StepError(lost))
    )
    assert str(error) == str(StepError(*error.args))


@pytest.mark.parametrize("letter", ["x", "é", '"', "\n"])
def test_a_long_reason_is_cut_to_what_travels(letter):
    fault = Fault(rank=5, pipeline_rank=1, action="1F3", module="h.4", why=letter * 9000)

    assert len(fault.encode().encode()) <= 4096
    assert letter * 100 == Fault.decode(fault.encode()).why[:100]


@pytest.mark.parametrize(
    ("hint", "end"),
    [("Pass an even number", "Pass an even number. See"), ("Even?", "Even? See")],
)
def test_sentences_of_a_cause_end_once(hint, end):
    cause = OptionError("width is 3", "heads are two", hint)
    fault = Fault(rank=0, pipeline_rank=0, action="0F0", module="h", why=error_text(cause))
    texts = [str(StepError(each)) for each in (fault, Fault.decode(fault.encode()))]

    assert {
        f"{fault.where}: OptionError: width is 3: heads are two. {end} the traceback in the log of"
        " rank 0."
    } == set(texts)


def test_sentences_of_a_cause_end_once_on_all_ranks(world):
    found = world.run(failing, 1, "option", "smdist", size=RANKS, deadline=120)

    for told in found:
        assert "OptionError: it is 3: odd. Pass 4." == told["why"]
        assert (
            "rank 1 (pipeline rank 1) failed in 1F2 of 'units.1' (stage 1, forward pass, microbatch"
            " 2): OptionError: it is 3: odd. Pass 4. See the traceback in the log of rank 1."
            == told["text"]
        )


def troubles(name):
    def option(_):
        raise OptionError("it is 3", "odd", "Pass 4")

    def fail(_):
        raise ValueError("2 plus 2 is 5")

    def interrupt(_):
        raise KeyboardInterrupt

    def leave(_):
        raise SystemExit(3)

    def kill(_):
        os.kill(os.getpid(), signal.SIGKILL)

    return {
        "fail": fail,
        "option": option,
        "interrupt": interrupt,
        "exit": leave,
        "kill": kill,
        "backward": Wrong.apply,
        "shape": lambda y: torch.cat([y, y], 1),
        "dtype": lambda y: y.double(),
        "form": lambda y: (y, y),
    }[name]


def split(backend="smdist"):
    torch.set_num_threads(1)
    specimen = zoo.Specimen(model=Model(), batch=(torch.ones(8, 4),))
    group = dist.new_group(backend="gloo") if backend == "gloo" else None
    return Split(specimen, Pipeline(schedule="1f1b", num_ranks=RANKS), group)


def failing(rank, size, culprit, trouble, backend):
    model_parts = split(backend)
    if rank == culprit:
        model_parts.specimen.model.units[rank].trouble["do"] = troubles(trouble)
    return told_by(model_parts.executor, model_parts.feed())


def feeding(rank, size, wrong, culprit):
    parts = split()
    usual = parts.feed()

    def feed(microbatch, call):
        if rank != culprit or microbatch != 1:
            return usual(microbatch, call)
        arguments = arguments_of(parts.parts[microbatch])
        if wrong == "before":
            raise ValueError("before the model")
        if wrong == "never":
            return None, []
        try:
            output = call(arguments)
            output = call(arguments) if wrong == "twice" else output
        except PassedOn:
            if wrong != "swallowed":
                raise
            return None, []
        if wrong == "result":
            return output
        raise ValueError("after the model")

    return told_by(parts.executor, feed)


def guarding(rank, size):
    executor = split().executor

    def run():
        with executor.guarded("the sum of gradients"):
            if rank == 2:
                raise ValueError("no sum")
            dist.all_reduce(torch.ones(4))

    return told(run)


def summing_without_one(rank, size):
    executor = split().executor
    try:
        with executor.guarded("the sum of gradients"):
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(4))
    except StepError as error:
        return error.kind, error.rank, error.gone, error.action
    return None


def told_by(executor, feed):
    draws = Split.draws
    return told(lambda: executor.run(feed, draws=draws, backward=True))


def told(run):
    begin = time.monotonic()
    try:
        run()
    except StepError as error:
        return {
            "place": (error.rank, error.pipeline_rank, error.action, error.module),
            "text": str(error),
            "kind": error.kind,
            "gone": error.gone,
            "seconds": time.monotonic() - begin,
            "why": error.why,
            "cause": fields_of(error.__cause__),
            "is_interrupt": isinstance(error, KeyboardInterrupt),
        }
    raise AssertionError("the step did not fail")


def fields_of(error):
    """Return the type of an exception, and what it is about and its kind, if it is one of ours."""
    return type(error).__name__, getattr(error, "about", ()), getattr(error, "kind", "")
