# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is: all of it is said, or nothing, and nothing contradicts."""

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
    with pytest.raises(OptionError, match=rf"and not {missing}: ranks of a job need all"):
        read(**{missing: ""})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"RANK": "8"}, "RANK is 8 and WORLD_SIZE is 8: ranks count from 0"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9 and WORLD_SIZE is 8"),
        ({"RANK": "0"}, "LOCAL_RANK is 1 and RANK is 0"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0: ports are 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536"),
        ({"RANK": "1.5"}, "RANK is '1.5': it takes a whole number"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
    ],
)
def test_a_contradiction_is_named(changes, expected):
    with pytest.raises(OptionError, match=expected):
        read(**changes)


def test_all_contradictions_are_named_at_once():
    with pytest.raises(OptionErrors) as caught:
        read(RANK="9", MASTER_PORT="0")

    assert 2 == len(caught.value.faults)
