# SPDX-License-Identifier: Apache-2.0
"""The progress line has the training's steps, samples and time of all-reduces."""

import contextlib
import io
import math
import os
import pickle
import re
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDDP

import smdist.dataparallel.torch as sdp
from sagemaker_dist.contract.metrics import FIELDS, LOSS, metric_definitions
from sagemaker_dist.errors import OptionError

BATCH, WIDTH, STEPS = 6, 16, 8
ROUNDED = 1e-4  # six digits on the line


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))


def rows():
    return torch.ones(BATCH, WIDTH)


def every_step(module, **options):
    """A line at each step instead of every ten seconds."""
    return sdp.DistributedDataParallel(module, progress_seconds=0, **options)


@contextlib.contextmanager
def lines_of_a_group():
    """The lines that this rank prints until its group is destroyed, as SageMaker reads them."""
    names = [LOSS, *(field for field in FIELDS if field != LOSS)]
    regexes = [each["Regex"] for each in metric_definitions()]
    lines = []
    with contextlib.redirect_stdout(io.StringIO()) as said:
        yield lines
        dist.destroy_process_group()
    for line in said.getvalue().splitlines():
        found = {name: re.search(regex, line) for name, regex in zip(names, regexes, strict=True)}
        lines.append({name: float(match[1]) for name, match in found.items() if match})


def train(rank, size):
    with lines_of_a_group() as lines:
        model = every_step(net())
        start = time.perf_counter()
        for _ in range(STEPS):
            model(rows()).mean().backward()
        seconds = time.perf_counter() - start
    return lines, seconds


@pytest.mark.parametrize("size", [1, 3])
def test_a_training_says_how_it_goes_on(world, size):
    """Steps are counted, samples are those of all ranks, and times fit in one another."""
    (lines, seconds), *others = world.run(train, size=size)

    assert [([], other[1]) for other in others] == others  # rank 0 alone prints
    assert list(range(1, STEPS + 1)) == [line["step"] for line in lines]
    for line in lines[:-1]:
        per_second, milliseconds = line["steps_per_second"], line["all_reduce_ms"]
        assert pytest.approx(BATCH * size * per_second, ROUNDED) == line["samples_per_second"]
        assert 0 < milliseconds <= 1e3 / per_second * (1 + ROUNDED)
        assert "loss" not in line
    assert {"step"} == lines[-1].keys()  # nobody knows how long the last step took
    spent = sum(1 / line["steps_per_second"] for line in lines[:-1])
    assert 0 < spent <= seconds * (1 + ROUNDED)


def accumulate(rank, size):
    with lines_of_a_group() as lines:
        model = every_step(net())
        for _ in range(STEPS):
            with model.no_sync():
                model(rows()).mean().backward()
                model(rows()).mean().backward()
            model(rows()).mean().backward()
    return lines


def test_accumulated_gradients_are_one_step(world):
    """Passes within no_sync() add their samples to the step that averages."""
    lines, _ = world.run(accumulate, size=2)

    assert list(range(1, STEPS + 1)) == [line["step"] for line in lines]
    for line in lines[:-1]:
        expected = 3 * 2 * BATCH * line["steps_per_second"]
        assert pytest.approx(expected, ROUNDED) == line["samples_per_second"]


def evaluate(rank, size):
    with lines_of_a_group() as lines:
        model = every_step(net())
        for _ in range(3):
            model(rows()).mean().backward()
            model.eval()
            model(rows())
            model.train()
            with torch.no_grad():
                model(rows())
    return lines


def test_evaluation_counts_for_nothing(world):
    """Neither eval() nor no_grad() makes a step or adds samples."""
    lines, _ = world.run(evaluate, size=2)

    assert [1, 2, 3] == [line["step"] for line in lines]
    for line in lines[:-1]:
        expected = 2 * BATCH * line["steps_per_second"]
        assert pytest.approx(expected, ROUNDED) == line["samples_per_second"]


def say_loss(rank, size):
    with lines_of_a_group() as lines:
        model = every_step(net())
        for step in range(3):
            loss = model(rows()).mean()
            loss.backward()
            sdp.report(loss=100.0)  # the latest counts
            sdp.report(loss=loss + step if step < 2 else loss * float("nan"), step=50 + step)
    return lines, loss.item()


def test_the_script_says_its_loss_and_its_step(world):
    """The loss of the step that has just ended; rates are still counted; nan is not read."""
    (lines, loss), _ = world.run(say_loss, size=2)

    assert [50, 51, 52] == [line["step"] for line in lines]
    assert [pytest.approx(loss, ROUNDED), pytest.approx(1 + loss, ROUNDED)] == [
        line["loss"] for line in lines[:-1]
    ]
    assert "loss" not in lines[-1]
    assert all("samples_per_second" in line for line in lines[:-1])


def plain(rank, size, wrapper, with_step):
    with lines_of_a_group() as lines:
        model = TorchDDP(net()) if wrapper == "ddp" else fully_shard(net())
        for step in range(5):
            loss = model(rows()).mean()
            loss.backward()
            sdp.report(loss=loss.detach(), **({"step": 10 * step} if with_step else {}))
    return lines


@pytest.mark.parametrize(
    ("wrapper", "timed"),
    [("ddp", {"all_reduce_ms"}), ("fsdp", {"reduce_scatter_ms", "all_gather_ms"})],
)
def test_report_alone_serves_other_wrappers(world, wrapper, timed):
    """The script's step makes rates and times known; samples are not."""
    (line,), none = world.run(plain, wrapper, True, size=2)

    assert [] == none
    assert {"step", "loss", "steps_per_second", *timed} == line.keys()
    assert 40 == line["step"]


def test_without_a_step_only_the_report_is_known(world):
    (line,), _ = world.run(plain, "ddp", False, size=2)

    assert {"loss"} == line.keys()


def say_nothing(rank, size, wrapper):
    wrap = {
        "torch": TorchDDP,
        "silent": lambda module: sdp.DistributedDataParallel(module, progress_seconds=None),
        "idle": every_step,
    }[wrapper]
    with lines_of_a_group() as lines:
        model = wrap(net())
        if wrapper == "idle":
            model.eval()
        model(rows()).mean().backward()
    return lines


@pytest.mark.parametrize("wrapper", ["torch", "silent", "idle"])
def test_nothing_known_is_nothing_printed(world, wrapper):
    """torch's own wrapper without report(); lines switched off; no training."""
    assert [[], []] == world.run(say_nothing, wrapper, size=2)


class Takes(nn.Module):
    """A model that finds its rows in any input."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, *args, **kwargs):
        found = [part for each in (*args, *kwargs.values()) for part in _tensors(each)]
        return self.inner(found[-1] if found else rows()).mean()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = [value[name] for name in value] if isinstance(value, dict) else value
    return (
        [each for part in parts for each in _tensors(part)]
        if isinstance(value, dict | list)
        else []
    )


def nested_rows(count, layout):
    """Rows of unlike lengths in one tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        parts = [torch.ones(each + 1) for each in range(count)]
        return torch.nested.nested_tensor(parts, layout=layout)


class Closed(dict):
    """A mapping that does not show what it has."""

    def values(self):
        raise KeyError("closed")


class Sizeless(torch.Tensor):
    """A tensor that does not say how large it is."""

    def size(self, *args):
        raise RuntimeError("no sizes")


class Seen(list):
    """A list that knows how much of it was looked at."""

    looks = 0

    def __iter__(self):
        for each in super().__iter__():
            Seen.looks += 1
            yield each


INPUTS = {
    "argument": ((torch.ones(5, WIDTH),), {}, 5),
    "keyword": ((), {"rows": torch.ones(4, WIDTH)}, 4),
    "nested": ((["text", {"rows": torch.ones(3, WIDTH)}],), {}, 3),
    "after a scalar": ((torch.tensor(1.0), torch.ones(2, WIDTH)), {}, 2),
    "no tensor": (("text", 7), {}, None),
    "strided nested": ((nested_rows(3, torch.strided), torch.ones(4, WIDTH)), {}, 3),
    "jagged nested": ((nested_rows(3, torch.jagged), torch.ones(4, WIDTH)), {}, 3),
    "after a long list": (([0] * 10**6, torch.ones(2, WIDTH)), {}, 2),
    "after many": ((*range(40), torch.ones(2, WIDTH)), {}, 2),
    "closed": ((Closed(rows=7),), {}, None),
    "no size": ((torch.ones(2, WIDTH).as_subclass(Sizeless),), {}, None),
}


def feed(rank, size, kind):
    args, kwargs, _ = INPUTS[kind]
    with lines_of_a_group() as lines:
        model = every_step(Takes())
        for _ in range(3):
            model(*args, **kwargs).backward()
    return lines


@pytest.mark.parametrize("kind", INPUTS)
def test_samples_are_rows_of_the_first_tensor(world, kind):
    """Where there is none, the figure is left out."""
    (lines,) = world.run(feed, kind, size=1)
    expected = INPUTS[kind][2]

    for line in lines[:-1]:
        if expected is None:
            assert "samples_per_second" not in line
        else:
            expected_rate = expected * line["steps_per_second"]
            assert pytest.approx(expected_rate, ROUNDED) == line["samples_per_second"]


class Ignores(nn.Module):
    """A model that does without its inputs."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, *args):
        return self.inner(rows()).mean()


def endless():
    inside = []
    inside.extend([inside] * 20)
    return inside


LONG = {"flat": lambda: [0] * 10**6, "nested": lambda: [[0] * 9] * 10**5, "endless": endless}


def look_around(rank, size, kind):
    Seen.looks = 0
    with lines_of_a_group():
        every_step(Ignores())(Seen(LONG[kind]())).backward()
    return Seen.looks


@pytest.mark.parametrize("kind", LONG)
def test_few_parts_of_long_inputs_are_looked_at(world, kind):
    """A step does not wait for a list of a million, nor for one that contains itself."""
    (looks,) = world.run(look_around, kind, size=1)

    assert 1 <= looks <= 20


def two_models(rank, size):
    with lines_of_a_group() as lines:
        first, second = every_step(net()), every_step(net())
        for _ in range(3):
            first(rows()).mean().backward()
        for _ in range(4):
            first(rows()).mean().backward()
            second(rows()).mean().backward()
    return [line["step"] for line in lines]


def test_the_training_that_began_last_has_the_lines(world):
    """The first training prints its last line; then only the second is counted."""
    assert [[1, 2, 3, 4, 1, 2, 3, 4]] == world.run(two_models, size=1)


def copied(rank, size):
    with lines_of_a_group() as lines:
        model = every_step(net())
        model(rows()).mean().backward()
        again = pickle.loads(pickle.dumps(model))
        again(rows()).mean().backward()
    return [line["step"] for line in lines]


def test_a_copy_is_another_training(world):
    """A wrapped model that was pickled has lines of its own."""
    assert [[1, 1]] == world.run(copied, size=1)


@pytest.mark.parametrize("seconds", [-1, "a", True, math.nan, torch.ones(1)])
def test_progress_seconds_is_a_time(seconds):
    with pytest.raises(OptionError) as caught:
        sdp.DistributedDataParallel(nn.Linear(1, 1), progress_seconds=seconds)

    assert ("progress_seconds",) == caught.value.about


def never(rank, size):
    with lines_of_a_group() as lines:
        model = sdp.DistributedDataParallel(net(), progress_seconds=math.inf)
        for _ in range(3):
            model(rows()).mean().backward()
    return [line["step"] for line in lines]


def test_an_endless_time_leaves_the_last_line(world):
    assert [[3]] == world.run(never, size=1)


def train_at_a_price(rank, size):
    os.environ["SMDIST_USD_PER_HOUR"] = "36000"  # 10 USD/s
    try:
        with lines_of_a_group() as lines:
            start = time.perf_counter()
            model = every_step(net())
            for _ in range(STEPS):
                model(rows()).mean().backward()
                time.sleep(0.01)
        return lines, time.perf_counter() - start
    finally:
        del os.environ["SMDIST_USD_PER_HOUR"]


def test_money_so_far(world):
    """With the price of the job's hosts, the line has what the training has cost."""
    (lines, seconds), *_ = world.run(train_at_a_price, size=2)
    costs = [line["cost_usd"] for line in lines]

    assert costs == sorted(costs)
    assert 10 * 0.01 * (STEPS - 1) <= costs[-1] <= 10 * seconds
