# SPDX-License-Identifier: Apache-2.0
"""Progress lines of a training on a device: the times of collectives that the engine runs."""

import contextlib
import io
import math

import accelerator
import pytest
import torch
from small_training import net, shard_of_batch
from torch import nn

from smdist.dataparallel import torch as sdp
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import is_timed

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}


def wrapped(wrapper):
    module = net().to(accelerator.NAME)
    if wrapper == "torch":
        return nn.parallel.DistributedDataParallel(module)
    return sdp.DistributedDataParallel(module, progress_seconds=math.inf)


def train(rank, size, wrapper):
    """Train, and return the fields of the line that is printed at the end; no line: None."""
    x, y = shard_of_batch(rank, size, accelerator.NAME)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model = wrapped(wrapper)
        for step in range(4):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            loss.item()  # the current stream waits for the averages
            if wrapper == "torch":
                sdp.report(loss=loss.detach(), step=step)
        step_report.finish()
    words = printed.getvalue().split()
    return dict(word.split("=") for word in words[1:]) or None


@pytest.mark.parametrize("wrapper", ["smdist", "torch"])
def test_staged_collectives_are_timed(device_processes, wrapper):
    """With the class that counts steps, and with report() of a loss on the device alone."""
    line, none = device_processes.run_ranks(train, wrapper, size=2, staging=SLOTS)

    assert none is None
    assert 0 < float(line["all_reduce_ms"]) <= 1.001e3 / float(line["steps_per_second"])


def timed(rank, size):
    return [is_timed(torch.device(each)) for each in ("cpu", accelerator.NAME, "xpu")]


def test_collectives_of_another_backend_are_not_timed(device_processes):
    """The one that carries the device's tensors counts, and "xpu" has none."""
    of_engine = device_processes.run_ranks(timed, size=1, staging=SLOTS)
    of_another = device_processes.run_ranks(timed, size=1)

    assert ([[True, True, False]], [[True, False, False]]) == (of_engine, of_another)
