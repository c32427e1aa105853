# SPDX-License-Identifier: Apache-2.0
"""Marks on modules, as users write them."""

import copy
import pickle
from threading import Event, Thread

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.program.partition_marks import marks_of, partition, set_partition
from smdist.modelparallel.torch.tensor_parallel.marks import chosen, tensor_parallelism


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with partition(0):
            self.embed = nn.Embedding(4, 4)
            with partition(1):
                self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 4)


MARKS = {"embed": 0, "blocks": 1, "norm": 0}


def test_modules_created_in_a_block_are_marked():
    """The inner block counts; what stands outside has no mark."""
    assert MARKS == marks_of(Net())


def test_a_block_around_the_model_marks_what_has_no_block_of_its_own():
    with partition(2):
        net = Net()

    assert {"": 2, "embed": 0, "blocks": 1, "norm": 0} == marks_of(net)


def test_meta_models_are_marked():
    with torch.device("meta"):
        net = Net()

    assert MARKS == marks_of(net)


def test_modules_that_exist_are_marked():
    net = Net()
    set_partition(net.head, 3)
    set_partition(net.blocks[1], 2)
    set_partition(net.embed, 1)

    assert {"embed": 1, "blocks": 1, "blocks.1": 2, "norm": 0, "head": 3} == marks_of(net)


def test_copies_and_pickles_keep_their_marks():
    net = Net()

    assert MARKS == marks_of(copy.deepcopy(net))
    assert MARKS == marks_of(pickle.loads(pickle.dumps(net)))


def test_a_model_is_otherwise_as_before():
    with partition(1):
        linear = nn.Linear(2, 2)

    assert nn.Linear is type(linear)
    assert ["weight", "bias"] == list(linear.state_dict())
    assert str(nn.Linear(2, 2)) == str(linear)


def test_the_hook_is_gone_after_the_block():
    """Also after an error in it."""
    plain = nn.Module.__init__
    with pytest.raises(RuntimeError, match="broken"), partition(0), partition(1):
        raise RuntimeError("broken")

    assert plain is nn.Module.__init__
    assert {} == marks_of(nn.Linear(2, 2))


def test_blocks_mark_in_their_own_thread_alone():
    made = []
    with partition(1):
        thread = Thread(target=lambda: made.append(nn.Linear(2, 2)))
        thread.start()
        thread.join(timeout=30)

    assert {} == marks_of(made[0])


def test_blocks_of_two_kinds_overlap():
    """A block of another thread begins inside a block of the other kind, and ends after it."""
    plain = nn.Module.__init__
    has_begun, may_go_on = Event(), Event()
    made = []

    def build():
        with tensor_parallelism(False):
            has_begun.set()
            assert may_go_on.wait(timeout=30)
            made.append(nn.Linear(2, 2))

    thread = Thread(target=build)
    with partition(1):
        thread.start()
        assert has_begun.wait(timeout=30)
    may_go_on.set()
    thread.join(timeout=30)

    assert ({}, {"": False}) == (marks_of(made[0]), chosen(made[0]))
    assert plain is nn.Module.__init__


def test_a_block_can_wrap_a_function():
    @partition(1)
    def build():
        return nn.Linear(2, 2)

    assert {"": 1} == marks_of(build()) == marks_of(build())


@pytest.mark.parametrize("stage", [-1, True, "1", 1.0, None])
def test_stages_are_numbers_from_0(stage):
    with pytest.raises(OptionError) as caught:
        set_partition(nn.Linear(2, 2), stage)
    with pytest.raises(OptionError) as in_block, partition(stage):
        pass

    assert [("stage",)] * 2 == [each.value.about for each in (caught, in_block)]


def test_marks_are_on_modules():
    with pytest.raises(OptionError) as caught:
        set_partition([nn.Linear(2, 2)], 0)

    assert ("module",) == caught.value.about
