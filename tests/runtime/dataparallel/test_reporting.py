# SPDX-License-Identifier: Apache-2.0
"""What report() takes and keeps, and that what it was given stops no training later."""

import os
import subprocess
import sys
import weakref
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist

import smdist.dataparallel.torch as sdp
from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import TrainingProgress


def distributed_loss(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    with pytest.raises(OptionError) as caught:
        sdp.report(loss=distribute_tensor(torch.ones(1), init_device_mesh("cpu", (size,))))
    assert (("loss",), "not_number") == (caught.value.about, caught.value.kind)


def test_what_rank_0_cannot_read_alone_is_refused(world):
    world.run(distributed_loss, size=1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"loss": torch.ones(2)}, "not_number"),
        ({"loss": torch.tensor(1j)}, "not_number"),
        ({"loss": "0.5"}, "not_number"),
        ({"loss": None}, "not_number"),
        ({"loss": torch.ones((), device="meta")}, "no_values"),
        ({"loss": 10**5000}, "too_large"),
        ({"loss": -Fraction(10**400)}, "too_large"),
        ({"step": 0.5}, "not_integer"),
        ({"step": 2**63}, "not_integer"),
        ({"step": -(10**5000)}, "not_integer"),
    ],
)
def test_values_that_are_no_numbers_are_refused(values, kind):
    with pytest.raises(OptionError) as caught:
        sdp.report(**values)

    assert ((*values,), kind) == (caught.value.about, caught.value.kind)


def test_a_value_is_shown_with_at_most_200_characters():
    with pytest.raises(OptionError) as caught:
        sdp.report(loss=-Fraction(10**400))

    assert (
        f"report() received loss=Fraction(-1{'0' * 189}: it is too large for a floating-point"
        " number. Pass its logarithm, or leave it out."
    ) == str(caught.value)


def test_a_name_that_no_line_can_have_is_refused():
    with pytest.raises(OptionError) as caught:
        sdp.report(**{"val/loss": 0.5})

    assert ("val/loss",) == caught.value.about


class Marked(torch.autograd.Function):
    """A node of the graph that keeps something alive."""

    @staticmethod
    def forward(ctx, value, kept):
        ctx.kept = kept
        return value * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class Kept:
    """Stands for activations."""


def test_a_reported_loss_does_not_keep_its_graph(capsys):
    """Where no backward pass frees activations, the next pass does."""
    kept = Kept()
    is_alive = weakref.ref(kept)
    progress = TrainingProgress(counts=True)
    loss = Marked.apply(torch.ones((), requires_grad=True), kept)
    progress.report({"loss": loss})
    del loss, kept

    assert is_alive() is None
    progress.flush()
    assert "smdist: step=0 loss=2\n" == capsys.readouterr().out


class Unreadable(torch.Tensor):
    """A tensor whose value cannot be had, as after a fault of a device."""

    def item(self):
        raise RuntimeError("device-side assert")


def test_what_cannot_be_read_is_left_out(capsys):
    """The other values are on the line."""
    progress = TrainingProgress(counts=True)
    progress.report({"loss": torch.ones(()).as_subclass(Unreadable), "right": torch.tensor(True)})
    progress.report({"large": 10**300, "tiny": Fraction(1, 4), "endless": float("inf")})
    progress.flush()

    expected = f"smdist: step=0 right=1 large=1{'0' * 300} tiny=0.25 endless=inf\n"
    assert expected == capsys.readouterr().out


class Deaf:
    """A script's own output, which takes no lines."""

    def write(self, text):
        raise TypeError("bytes, please")


@pytest.mark.parametrize("output", [None, Deaf()])
def test_an_output_that_takes_no_lines_stops_nothing(monkeypatch, output):
    progress = TrainingProgress(counts=True)
    progress.report({"loss": 0.5})
    monkeypatch.setattr(sys, "stdout", output)
    progress.flush()


def report_alone(rank, size):
    """How often the environment is read, without a group."""
    dist.destroy_process_group()
    read, calls = step_report.read_rank_config, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_report, "read_rank_config", lambda: calls.append(1) or read())
        for _ in range(3):
            sdp.report(loss=0.5)
        step_report.finish()
        sdp.report(loss=0.5)
        step_report.finish()
    return len(calls)


def test_the_environment_is_not_read_at_each_step(world):
    """Once, and again when a training has ended."""
    assert [2] == world.run(report_alone, size=1)


SCRIPT = """
import os
import smdist.dataparallel.torch as sdp
sdp.report(loss=0.25)
if child := os.fork():
    os.waitpid(child, 0)
    sdp.report(loss=0.5)
"""


def test_the_end_of_the_process_prints_what_is_left():
    """Once, with the latest value, and not in a forked child; no group is needed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=90
    )

    assert "smdist: loss=0.5\n" == done.stdout, done.stderr


FORKS = """
import os
import smdist.dataparallel.torch as sdp
from smdist.dataparallel.torch import step_report
sdp.report(loss=0.5)
if child := os.fork():
    os.waitpid(child, 0)
elif {is_rank}:
    os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    sdp.report(loss=0.75)
    step_report.finish()
else:
    sdp.report(loss=0.25)
"""


@pytest.mark.parametrize("is_rank", [False, True])
@pytest.mark.slow
def test_a_forked_child_has_no_last_line_of_its_own(is_rank):
    """Also if it reports; the child checks again whether it is a rank of a job."""
    script = FORKS.format(is_rank=is_rank)
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=90
    )

    assert "smdist: loss=0.5\n" == done.stdout, done.stderr
