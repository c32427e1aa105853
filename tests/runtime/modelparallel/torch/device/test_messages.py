# SPDX-License-Identifier: Apache-2.0
"""Values and gradients travel from device to device, while the device computes."""

import test_device
import torch
import torch.distributed as dist
import zoo
from smp_nets import net
from splitting import Pipeline, Split, plain_step
from test_device import in_order_group
from torch import nn

from smdist.modelparallel.torch.session import device_channels

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
WIDTH, ROWS = 64, 64


def crossing_step(rank, size):
    """Run a schedule that needs messages in another order than they are sent, without tags."""
    in_order_group.register()
    device_channels.COMMUNICATORS[in_order_group.BACKEND] = in_order_group.communicator
    group = dist.new_group(backend=in_order_group.BACKEND)
    pipeline = Pipeline(schedule="interleaved_1f1b", virtual_stages=3, num_microbatches=6)

    def specimen():
        model = net().to("testdev")
        return zoo.Specimen(model=model, batch=(torch.arange(96.0, device="testdev").view(12, 8),))

    expected = plain_step(specimen(), 6, loss=loss_of)
    split = Split(specimen(), pipeline, group)
    found = split.step(loss=loss_of)
    worst = max(
        (each - expected.gradients[name]).abs().max().item()
        for name, each in found.gradients.items()
    )
    return worst, split.executor._transfers.is_ordered


def loss_of(output):
    return output["logits"].square().mean()


def test_a_backend_without_tags_receives_in_the_order_of_sending(pipelines):
    for worst, is_ordered in pipelines.run_ranks(crossing_step, size=2):
        assert is_ordered
        assert worst <= 1e-6


class Slow(nn.Module):
    """Keeps the device of rank 1 busy."""

    def __init__(self, rank):
        super().__init__()
        self.linear, self.rank = nn.Linear(WIDTH, WIDTH, device="testdev"), rank

    def forward(self, x):
        if self.rank and not torch.compiler.is_compiling() and type(x) is torch.Tensor:
            test_device.sleep(20)
        return self.linear(x)


def forward_passes(rank, size, *counts):
    """Return the trace of forward passes, and the largest amount of memory, for each count."""
    answers = []
    for count in counts:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, device="testdev"), Slow(rank))
        batch = torch.ones(ROWS * count, WIDTH, device="testdev")
        pipeline = Pipeline(schedule="1f1b", num_microbatches=count)
        split = Split(zoo.Specimen(model=model, batch=(batch,)), pipeline)
        split.step(backward=False)
        torch.accelerator.synchronize()
        before = torch.testdev.memory_allocated()
        torch.testdev.reset_peak_memory_stats()
        test_device.start_trace()
        split.step(backward=False)
        torch.accelerator.synchronize()
        trace = [entry for entry in test_device.stop_trace() if entry.device == 0]
        answers.append((trace, torch.testdev.max_memory_allocated() - before))
    return answers


def test_receives_overlap_and_their_buffers_are_bounded(pipelines):
    """The next value arrives while a stage computes; 24 microbatches need no more than 8."""
    answers = pipelines.run_ranks(forward_passes, 8, 24, size=2, staging=SLOTS)[1]
    (trace, least), (_, most) = answers
    asleep = [entry for entry in trace if entry.name == "sleep"]
    copies = [entry for entry in trace if entry.name == test_device.COPY_TO_DEVICE]

    assert 8 == len(asleep)
    overlapping = [
        sleep
        for sleep in asleep
        if any(sleep.begin_us < copy.begin_us and copy.end_us < sleep.end_us for copy in copies)
    ]
    assert len(overlapping) >= 4
    assert most <= 1.5 * least
