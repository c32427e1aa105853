# SPDX-License-Identifier: Apache-2.0
"""An option checks itself and reports every fault at once."""

import copy
import pickle
from dataclasses import fields
from inspect import signature

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist.contract import DataParallel, MiB, ModelParallel, host_faults
from sagemaker_dist.contract.aws_distributions import MPI, OnInstanceGroup
from sagemaker_dist.errors import OptionError, OptionErrors


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("processes_per_host", 0),
        ("processes_per_host", "8"),
        ("processes_per_host", True),
        ("fusion_bytes", MiB - 1),
        ("fusion_bytes", None),
        ("fusion_bytes", 1e9),
        ("timeout_seconds", 0),
        ("start_timeout_seconds", 86_401),
        ("silence_seconds", 4),
        ("silence_seconds", 901),
        ("silence_seconds", 60.0),
        ("lanes", 0),
        ("lanes", 17),
        ("lanes", True),
        ("chunk_bytes", 64 * 1024 - 64),
        ("chunk_bytes", 64 * 1024 + 32),
        ("chunk_bytes", 16 * MiB + 64),
        ("one_shot_bytes", -1),
        ("one_shot_bytes", MiB + 1),
        ("single_owner_bytes", -1),
        ("single_owner_bytes", MiB + 1),
        ("single_owner_bytes", "0"),
        ("arriving_bytes", -1),
        ("arriving_bytes", 64 * MiB + 1),
    ],
)
def test_value_out_of_range_is_named(name, value):
    assert [(name, "option")] == fields_raised(lambda: DataParallel(**{name: value}))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lanes", (None, 1, 16)),
        ("chunk_bytes", (None, 64 * 1024, 64 * 1024 + 64, 16 * MiB)),
        ("one_shot_bytes", (None, 0, MiB)),
        ("single_owner_bytes", (None, 0, MiB)),
        ("shard_weights", (None, (1,), (0, 65_535))),
    ],
)
def test_both_ends_of_a_range_are_in_it(name, values):
    """None leaves the value to the job, and is the default."""
    assert getattr(DataParallel(), name) is None
    assert list(values) == [getattr(DataParallel(**{name: value}), name) for value in values]


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("integrity", "crc32", "option"),
        ("integrity", True, "option"),
        ("integrity", None, "option"),
        ("encrypt", 1, "type"),
        ("encrypt", "yes", "type"),
        ("encrypt", None, "type"),
        ("gpu_collectives", "gloo", "option"),
        ("gpu_collectives", None, "option"),
        ("max_restarts", -1, "option"),
        ("max_restarts", 1001, "option"),
        ("max_restarts", True, "option"),
        ("max_restarts", None, "option"),
        ("elastic_min", 0, "option"),
        ("elastic_min", True, "option"),
        ("elastic_min", 1.5, "option"),
    ],
)
def test_choices_that_do_not_exist_are_refused(option, value, kind):
    assert [(option, kind)] == fields_raised(lambda: DataParallel(**{option: value}))


def test_protection_is_off_unless_asked_for():
    """Each value that exists is kept."""
    assert ("off", False) == (DataParallel().integrity, DataParallel().encrypt)
    for integrity in ("off", "crc32c", "mac"):
        options = DataParallel(integrity=integrity, encrypt=True)
        assert (integrity, True) == (options.integrity, options.encrypt)


def test_text_of_a_value_out_of_range():
    """The text has the option, the value, and the range to stay in."""
    with pytest.raises(OptionError) as caught:
        DataParallel(chunk_bytes=100_000)

    assert str(caught.value) == (
        "chunk_bytes is 100000: smaller pieces spend more time on latency than on data,"
        " larger ones cannot overlap sending with reducing, and 64 bytes are reduced at a"
        " time. Pass an integer from 65536 to 16777216 that is a multiple of 64."
    )


def test_a_list_of_weights_becomes_a_tuple():
    """Options stay hashable, and one read from JSON equals the one that was written."""
    options = DataParallel(shard_weights=[1, 2, 1])

    assert (1, 2, 1) == options.shard_weights
    assert hash(options) == hash(DataParallel(shard_weights=(1, 2, 1)))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("12", [("shard_weights", "type")]),
        (3, [("shard_weights", "type")]),
        ((), [("shard_weights", "option")]),
        ([0, 0], [("shard_weights", "option")]),
        ([1, -1], [("shard_weights[1]", "option")]),
        ([65_536, 0, 1.5, True], [(f"shard_weights[{at}]", "option") for at in (0, 2, 3)]),
    ],
)
def test_every_wrong_weight_is_told(weights, expected):
    assert expected == fields_raised(lambda: DataParallel(shard_weights=weights))


def test_there_is_one_weight_per_host():
    """Told with both numbers; without weights any number of hosts will do."""
    (fault,) = host_faults(DataParallel(shard_weights=(1, 2, 1)), 2)

    assert [("shard_weights", "difference")] == fields_of(fault)
    assert str(fault) == (
        "shard_weights is of length 3: the number of hosts is 2, and each host has one weight."
        " Pass one weight per host, in numeric order of hosts, or leave shard_weights out."
    )
    assert [] == list(host_faults(DataParallel(shard_weights=(1, 2)), 2))
    assert [] == list(host_faults(DataParallel(), 2))


def test_an_elastic_job_keeps_at_most_the_hosts_that_it_has():
    (fault,) = host_faults(DataParallel(elastic_min=3), 2)

    assert [("elastic_min", "difference")] == fields_of(fault)
    assert str(fault) == (
        "elastic_min is 3: the number of hosts is 2, and no more can be left. Pass an integer from"
        " 1 to 2, or leave elastic_min out."
    )
    assert [] == list(host_faults(DataParallel(elastic_min=2), 2))


def test_hosts_that_may_leave_have_no_weights():
    expected = [("elastic_min", "conflict")]

    assert expected == fields_raised(lambda: DataParallel(elastic_min=1, shard_weights=(1, 2)))


def test_an_elastic_job_is_not_restarted():
    """One policy is carried out when a rank fails."""
    expected = [("elastic_min", "conflict")]

    assert expected == fields_raised(lambda: DataParallel(elastic_min=1, max_restarts=1))


def test_a_split_model_is_not_elastic():
    """A lost host takes stages with it."""
    expected = [("engine.elastic_min", "unsupported")]

    assert expected == fields_raised(lambda: ModelParallel(engine=DataParallel(elastic_min=1)))
    assert expected == fields_raised(lambda: ModelParallel(engine={"elastic_min": 1}))


def test_several_bad_values_are_one_error():
    """A request is mended in one go."""
    with pytest.raises(OptionErrors) as caught:
        DataParallel(fusion_bytes=1, timeout_seconds=-1, lanes=0, shard_weights=(0,))

    assert [
        ("fusion_bytes", "option"),
        ("timeout_seconds", "option"),
        ("lanes", "option"),
        ("shard_weights", "option"),
    ] == fields_of(caught.value)
    assert "4 faults" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "misspelt", "meant"),
    [
        (DataParallel, "proceses_per_host", "processes_per_host"),
        (ModelParallel, "microbatch", "microbatches"),
        (MPI, "processes_per_hosts", "processes_per_host"),
        (OnInstanceGroup, "groups", "group"),
    ],
)
def test_a_misspelt_option_is_named_with_the_one_that_is_meant(option, misspelt, meant):
    """As in the dict form."""
    with pytest.raises(OptionError) as caught:
        option(**{misspelt: 2})

    assert [(misspelt, "unknown")] == fields_of(caught.value)
    assert repr(meant) in caught.value.hint


def test_options_still_copy_and_say_what_they_take():
    options = DataParallel(lanes=2)

    assert options == pickle.loads(pickle.dumps(options)) == copy.deepcopy(options)
    assert {field.name for field in fields(options)} == set(signature(DataParallel).parameters)


def test_options_cannot_be_changed():
    """What was checked stays checked."""
    options = DataParallel()

    with pytest.raises(AttributeError):
        options.fusion_bytes = 0


@pytest.mark.parametrize(
    "error",
    [OptionError("a", "b", "c"), OptionErrors((OptionError("a", "b", "c"),))],
)
def test_errors_survive_a_trip_between_processes(error):
    """Workers send errors to their parents."""
    assert str(error) == str(pickle.loads(pickle.dumps(error)))
