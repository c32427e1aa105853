# SPDX-License-Identifier: Apache-2.0
"""How the engine divides its work: what the launcher writes, and hands may set, is read back."""

import re
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised
from hypothesis import given
from hypothesis import strategies as st

import smdist
from sagemaker_dist.contract import DataParallel, MiB
from sagemaker_dist.contract.option_variables import (
    OPTIONS,
    conflict_faults,
    misspelt,
    option_text,
    variable_of,
    with_variables,
)
from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.config import read_rank_config
from smdist.tuning import TuningConfig, read_tuning, write_tuning

SMALL = st.none() | st.integers(0, MiB)
TUNING = st.builds(
    TuningConfig,
    lanes=st.none() | st.integers(1, 16),
    chunk_bytes=st.none() | st.sampled_from([64 * 1024, 64 * 1025, 16 * MiB]),
    one_shot_bytes=SMALL,
    single_owner_bytes=SMALL,
    arriving_bytes=SMALL,
    shard_weights=st.none() | st.tuples(st.just(1), st.integers(0, 65_535)),
)


@given(tuning=TUNING)
def test_ranks_read_what_the_launcher_writes(tuning):
    asked = {name: getattr(tuning, name) for name in TuningConfig.__slots__}
    variables = write_tuning(DataParallel(**asked))

    assert tuning == read_tuning(variables) == read_rank_config(variables).tuning
    assert len(variables) == sum(value is not None for value in asked.values())


def test_hands_may_write_spaces_and_leave_variables_empty():
    variables = {"SMDIST_LANES": "", "SMDIST_SHARD_WEIGHTS": "1, 2 ,1"}

    assert TuningConfig(shard_weights=(1, 2, 1)) == read_tuning(variables)


@pytest.mark.parametrize(
    ("name", "text", "index"),
    [
        ("LANES", "17", ""),
        ("LANES", "many", ""),
        ("LANES", "4.0", ""),
        ("CHUNK_BYTES", "65537", ""),
        ("ONE_SHOT_BYTES", "-1", ""),
        ("SINGLE_OWNER_BYTES", "1048577", ""),
        ("SHARD_WEIGHTS", "0,0", ""),
        ("SHARD_WEIGHTS", "1,,2", "[1]"),
        ("SHARD_WEIGHTS", "1,65536", "[1]"),
        ("FUSION_BYTES", "7", ""),
        ("TIMEOUT_SECONDS", "0", ""),
        ("TIMEOUT_SECONDS", "1.5", ""),
        ("START_TIMEOUT_SECONDS", "soon", ""),
        ("INTEGRITY", "crc", ""),
    ],
)
def test_a_wrong_value_names_its_variable(name, text, index):
    refused = fields_raised(lambda: read_rank_config({f"SMDIST_{name}": text}))

    assert [(f"SMDIST_{name}{index}", "option")] == refused


def test_protection_is_read():
    """Empty variables count as not set."""
    for variables, expected in (
        ({}, ("off", False)),
        ({"SMDIST_INTEGRITY": "", "SMDIST_ENCRYPT": ""}, ("off", False)),
        ({"SMDIST_INTEGRITY": "crc32c", "SMDIST_ENCRYPT": "0"}, ("crc32c", False)),
        ({"SMDIST_INTEGRITY": "mac", "SMDIST_ENCRYPT": "1"}, ("mac", True)),
    ):
        config = read_rank_config(variables)

        assert expected == (config.integrity, config.encrypt)


def test_silence_is_read():
    """An empty variable counts as not set."""
    for variables, expected in (
        ({}, 60),
        ({"SMDIST_SILENCE_SECONDS": ""}, 60),
        ({"SMDIST_SILENCE_SECONDS": "5"}, 5),
    ):
        assert expected == read_rank_config(variables).silence_seconds


def test_a_flag_is_one_or_zero():
    refused = fields_raised(lambda: read_rank_config({"SMDIST_ENCRYPT": "yes"}))

    assert [("SMDIST_ENCRYPT", "type")] == refused


def test_text_of_a_wrong_value():
    with pytest.raises(OptionError) as caught:
        read_rank_config({"SMDIST_LANES": "many"})

    assert str(caught.value) == (
        "the environment variable SMDIST_LANES is 'many': two ranks open between 1 and 16"
        " connections. Pass an integer from 1 to 16."
    )


def test_wrong_values_are_reported_together():
    variables = {"SMDIST_LANES": "0", "SMDIST_SHARD_WEIGHTS": "a,1,b"}

    assert [
        ("SMDIST_LANES", "option"),
        ("SMDIST_SHARD_WEIGHTS[0]", "option"),
        ("SMDIST_SHARD_WEIGHTS[2]", "option"),
    ] == fields_raised(lambda: read_tuning(variables))


def test_misspelt_and_wrong_variables_are_reported_together():
    with pytest.raises(OptionErrors) as caught:
        read_rank_config({"SMDIST_LANE": "4", "SMDIST_FUSION_BYTES": "-1", "SMDIST_LANES": "17"})

    assert [
        (("SMDIST_LANE",), "unknown"),
        (("SMDIST_FUSION_BYTES",), "option"),
        (("SMDIST_LANES",), "option"),
    ] == [(fault.about, fault.kind) for fault in caught.value.faults]


def test_a_misspelt_variable_is_refused():
    with pytest.raises(OptionErrors) as caught:
        read_rank_config({"SMDIST_LANE": "4", "SMDIST_CHUNKBYTES": "65536", "SMDIST_OF_MINE": "1"})

    lane, chunk_bytes = caught.value.faults

    assert (("SMDIST_LANE",), ("SMDIST_CHUNKBYTES",)) == (lane.about, chunk_bytes.about)
    assert (
        "the environment variable SMDIST_LANE is set: smdist reads no variable of this name."
        " Did you mean SMDIST_LANES? Otherwise unset SMDIST_LANE."
    ) == str(lane)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SMDIST_TIMEOUT", "SMDIST_TIMEOUT_SECONDS"),
        ("SMDIST_CHUNK", "SMDIST_CHUNK_BYTES"),
        ("SMDIST_LANES_COUNT", "SMDIST_LANES"),
    ],
)
def test_a_word_more_or_less_is_misspelt(name, meant):
    (fault,) = misspelt([name])

    assert [(name, "unknown")] == fields_of(fault)
    assert meant in fault.hint.split("?")[0].split()


def test_other_names_are_the_users_own():
    assert [] == list(misspelt(["SMDIST_", "SMDIST_FOO", "SMDIST_TIMEOUTS_A", "LANES"]))


def test_every_variable_that_ranks_read_is_known():
    """Whatever the sources name, so that none is taken for another that is misspelt."""
    room = Path(smdist.__file__).parent
    named = {
        name
        for path in room.rglob("*.py")
        for name in re.findall(r"SMDIST_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))
    }

    assert len(named) > 10
    assert [] == list(misspelt(named))


def options_of(**values):
    return {name: value for name, value in values.items() if value is not None}


PASSED = st.builds(
    options_of,
    integrity=st.sampled_from([None, "off", "crc32c", "mac"]),
    encrypt=st.sampled_from([None, False, True]),
    lanes=st.none() | st.integers(1, 16),
    shard_weights=st.none() | st.just((1, 2)),
    timeout_seconds=st.none() | st.integers(1, 100),
    silence_seconds=st.none() | st.integers(5, 900),
)


@given(passed=PASSED, variables=PASSED)
def test_a_variable_counts_where_the_option_is_left_out(passed, variables):
    """No variable is ignored: it counts, or it says the same as the option, or it is refused."""
    options = DataParallel(**passed)
    environ = {variable_of(name): option_text(value) for name, value in variables.items()}
    refused = {fault.about[0] for fault in conflict_faults(options, environ)}
    found = with_variables(options, environ)

    for name in OPTIONS:
        passed_value, default = getattr(options, name), getattr(DataParallel(), name)
        variable = variables.get(name, passed_value)
        if variable_of(name) in refused:
            assert passed_value not in (default, variable)
        else:
            assert getattr(found, name) == variable
