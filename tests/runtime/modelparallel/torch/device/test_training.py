# SPDX-License-Identifier: Apache-2.0
"""Pipelines on the tensors of a device train as one process does on this device."""

from dataclasses import replace

import accelerator
import device_training
import pytest
import torch
from device_training import Training

SLOTS = {"staging_slot_bytes": 4096, "staging_slots": 3}
ZERO_BUBBLE = {"pipeline": "zero_bubble_v", "virtual_stages": 2}


def trained(rank, size, *trainings):
    """Train several times on one rank, each time in a new session."""
    accelerator.set_seed(rank)
    answers = []
    for training in trainings:
        answers.append(device_training.split(rank, size, training))
        device_training.smp.session.end()
    torch.accelerator.synchronize()
    return answers, accelerator.take_stale_uses()


def compare(expected, found, steps=slice(None)):
    """Compare the losses of all replicas, and all values, with those of one process."""
    losses, weights = expected
    means = [sum(parts) / len(parts) for parts in zip(*(each[0] for each in found), strict=True)]
    assert losses[steps] == pytest.approx(means, abs=accelerator.TRAINED)
    for _, held in found:
        for name, value in held.items():
            torch.testing.assert_close(value, weights[name], rtol=0, atol=accelerator.TRAINED)


@pytest.fixture(scope="module")
def plain(pipelines):
    """The losses and values of one process on the device."""
    return pipelines.run(device_training.plain, Training(degree=1))


def test_two_stages(pipelines, plain):
    """In bfloat16, too; the last one is created on the CPU, and its ranks move their stages."""
    trainings = Training(degree=2), Training(degree=2, created_on="cpu", scaled=True)
    low = Training(degree=2, autocast=True)
    found = pipelines.run_ranks(trained, *trainings, low, size=2, staging=SLOTS)

    assert [accelerator.NEVER] * 2 == [stale for _, stale in found]
    for number in range(2):
        compare(plain, [answers[number] for answers, _ in found])
    compare(pipelines.run(device_training.plain, low), [answers[2] for answers, _ in found])


def test_replicas_shards_and_a_checkpoint_of_another_layout(pipelines, plain, tmp_path):
    """Two stages, then two replicas of a zero-bubble pipeline, sharded and not."""
    before = Training(degree=2, steps=range(2), saved_to=str(tmp_path))
    pipelines.run_ranks(trained, before, size=2, staging=SLOTS)
    whole = Training(degree=2, options=ZERO_BUBBLE)
    sharded = Training(degree=2, created_on="cpu", options={"sharding": "full"})
    resumed = replace(sharded, steps=range(2, 3), resumed_from=str(tmp_path))
    found = pipelines.run_ranks(trained, whole, sharded, resumed, size=4, staging=SLOTS)

    assert [accelerator.NEVER] * 4 == [stale for _, stale in found]
    for number, steps in enumerate((slice(None), slice(None), slice(2, 3))):
        compare(plain, [answers[number] for answers, _ in found], steps)
