# SPDX-License-Identifier: Apache-2.0
"""The loop around an elastic training, with a state whose world has one rank."""

import traceback

import pytest

from smdist.elastic.agent_client import Generation
from smdist.elastic.run import _re_form

GENERATION = Generation(
    number=1, session="s", rank=0, size=1, local_rank=0, local_size=1, hosts=("algo-1",), lost=()
)


class LonelyWorld:
    """World, state and launcher of one rank: it connects with nobody."""

    def world(self):
        return self

    def leave(self):
        pass

    def enter(self, generation, store):
        pass

    def next_generation(self, number, culprit):
        return GENERATION

    def enter_world(self, generation, on_reset):
        on_reset(self, None)


def scale_learning_rate(state, change):
    raise KeyError("lr")


def test_the_error_of_a_reset_callback_names_its_line(monkeypatch, capfd):
    """The error is raised after a second try with the same hosts, with the callback's frame."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    world = LonelyWorld()
    with pytest.raises(KeyError) as caught:
        _re_form(world, world, GENERATION, None, scale_learning_rate)

    frames = traceback.extract_tb(caught.value.__traceback__)
    assert "scale_learning_rate" == frames[-1].name
