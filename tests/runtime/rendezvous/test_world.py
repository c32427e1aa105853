# SPDX-License-Identifier: Apache-2.0
"""Numbers of a rank in the environment: all of them are set, or none, without contradictions."""

import pytest

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.world import World, world_of

WHOLE = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "7777",
}


def read(**changes):
    return world_of(read_rank_config({**WHOLE, **changes}))


def test_a_rank_reads_where_it_stands():
    expected = World(rank=5, size=8, local_rank=1, local_size=4, host="10.0.0.1", port=7777)

    assert expected == read()


@pytest.mark.parametrize(
    ("given", "agents", "port"),
    [("7777", "True", 7778), ("7777", "False", 7777), ("65535", "True", 65534)],
)
def test_where_torchrun_listens_ranks_meet_next_to_it(given, agents, port):
    assert port == read(MASTER_PORT=given, TORCHELASTIC_USE_AGENT_STORE=agents).port


@pytest.mark.parametrize("environ", [{}, {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}])
def test_a_process_without_numbers_is_alone(environ):
    """A place to meet, which some images set, makes no rank."""
    assert World(rank=0, size=1) == world_of(read_rank_config(environ))


@pytest.mark.parametrize("missing", WHOLE)
def test_what_is_missing_is_named(missing):
    with pytest.raises(OptionError) as caught:
        read(**{missing: ""})

    assert ((missing,), "missing") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"RANK": "8"}, "RANK"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE"),
        ({"RANK": "0"}, "LOCAL_RANK"),
    ],
)
def test_a_contradiction_is_named(changes, about):
    with pytest.raises(OptionError) as caught:
        read(**changes)

    assert ((about,), "conflict") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize(
    ("name", "text"),
    [("MASTER_PORT", "0"), ("MASTER_PORT", "65536"), ("RANK", "1.5"), ("WORLD_SIZE", "many")],
)
def test_a_value_out_of_range_is_named(name, text):
    with pytest.raises(OptionError) as caught:
        read(**{name: text})

    assert (name,) == caught.value.about
    assert "conflict" != caught.value.kind


def test_a_contradiction_is_one_sentence():
    with pytest.raises(OptionError) as caught:
        read(RANK="8")

    assert (
        "in the environment, RANK is 8 and WORLD_SIZE is 8: ranks are numbered from 0. Start the"
        " ranks with distribution= or torchrun, or unset these variables to run a single process."
    ) == str(caught.value)


def test_all_contradictions_are_named_at_once():
    with pytest.raises(OptionErrors) as caught:
        read(RANK="9", MASTER_PORT="0")

    assert [("RANK",), ("MASTER_PORT",)] == [fault.about for fault in caught.value.faults]
