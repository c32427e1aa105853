# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer: all ranks stop after the same step, and go on from there bit for bit."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs/examples/trainer.py"
STEPS, SAVE_EVERY = 12, 5

pytestmark = pytest.mark.timeout(180)


def train(rank, size, folder, interrupted_at=None, *, apart=False):
    """Train the example's steps; rank 1 gets SIGTERM in step interrupted_at.

    Ranks that are `apart` have a folder each, as on two hosts of SageMaker. Return the step at
    which training began, the steps done, whether the ranks agreed to stop, and the weights.
    """
    import torch

    import smdist.checkpoint
    import smdist.checkpoint.interruption as module

    spec = importlib.util.spec_from_file_location("trainer", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    began = []

    class Interrupted(example.Checkpoints):
        def on_train_begin(self, args, state, control, **others):
            began.append(state.global_step)

        def on_step_begin(self, args, state, control, **others):
            if rank == 1 and state.global_step == interrupted_at:
                os.kill(os.getpid(), signal.SIGTERM)

    example.Checkpoints = Interrupted
    before, variables = signal.getsignal(signal.SIGTERM), dict(os.environ)
    module._interruption = module.Interruption()
    local_rank, local_size = (0, 1) if apart else (rank, size)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), MASTER_ADDR="127.0.0.1")
    os.environ["OMP_NUM_THREADS"] = "1"  # the number of threads decides on bits, too
    os.environ.update(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(local_size))
    try:
        place = Path(folder, str(rank)) if apart else Path(folder)
        trainer = example.train(place, STEPS, SAVE_EVERY, on_each_host=apart)
        stopped = smdist.checkpoint.should_stop()
    finally:
        os.environ.clear()
        os.environ.update(variables)
        signal.signal(signal.SIGTERM, before)
    weights = torch.cat([each.detach().flatten() for each in trainer.model.parameters()])
    return (*began, trainer.state.global_step, stopped, weights.numpy().tobytes())


def train_apart(rank, size, folder, interrupted_at=None):
    return train(rank, size, folder, interrupted_at, apart=True)


def test_the_example_goes_on_bit_for_bit(world, tmp_path):
    """From the step of the interruption, between two regular checkpoints, in the middle of data.

    Then with a folder on each host, where one lacks a file of the newest checkpoint: both ranks
    take the one before.
    """
    whole = world.run(train, str(tmp_path / "whole"), size=2)
    first = world.run(train, str(tmp_path / "one"), 7, size=2)
    second = world.run(train, str(tmp_path / "one"), size=2)
    third = world.run(train_apart, str(tmp_path / "two"), 7, size=2)
    (tmp_path / "two/1/checkpoint-8/rng_state_1.pth").unlink()
    fourth = world.run(train_apart, str(tmp_path / "two"), size=2)

    assert [(0, STEPS, False)] * 2 == [each[:3] for each in whole]
    assert [(0, 8, True)] * 4 == [each[:3] for each in (*first, *third)]
    assert [(8, STEPS, False)] * 2 == [each[:3] for each in second]
    assert [(5, STEPS, False)] * 2 == [each[:3] for each in fourth]
    assert whole[0][3] != first[0][3]
    assert 1 == len({each[3] for each in (*whole, *second, *fourth)})
