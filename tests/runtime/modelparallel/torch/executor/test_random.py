# SPDX-License-Identifier: Apache-2.0
"""Random numbers around the model are the same on every stage, and go on as before after a step."""

import torch
import zoo
from splitting import Pipeline, Split

from smdist.modelparallel.torch.capture import arguments_of

PIPELINE = Pipeline(schedule="interleaved_1f1b", virtual_stages=2)


def test_the_feed_draws_the_same_on_every_stage(world):
    """By microbatch; with another seed other ones."""
    found = world.run(drawing, size=2, deadline=120)
    drawn = {}
    for rank in found:
        for seed, microbatch, numbers in rank["drawn"]:
            drawn.setdefault((seed, microbatch), []).append(numbers)

    assert 8 == len(drawn)
    for numbers in drawn.values():
        assert [numbers[0]] * PIPELINE.num_stages == numbers
    assert 8 == len({numbers[0] for numbers in drawn.values()})


def test_the_callers_random_numbers_go_on(world):
    for rank in world.run(drawing, size=2, deadline=120):
        assert rank["before"] == rank["after"]


def drawing(rank, size):
    torch.set_num_threads(1)
    split = Split(zoo.tiny("gpt2", rows=8, dropout=0.1), PIPELINE)
    drawn = []

    def feed(microbatch, call):
        numbers = torch.rand(3)
        drawn.append((seed, microbatch, tuple(numbers.tolist())))
        output = call(arguments_of(split.parts[microbatch]))
        return None, [(output["loss"], None)]

    torch.manual_seed(7)
    before = torch.rand(2).tolist()
    torch.manual_seed(7)
    for seed in range(2):
        split.executor.run(feed, draws=lambda at, of=seed: split.draws(at, seed=of), backward=True)
    return {"drawn": drawn, "before": before, "after": torch.rand(2).tolist()}
