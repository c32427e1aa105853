# SPDX-License-Identifier: Apache-2.0
"""An option checks itself and reports every fault at once."""

import pickle

import pytest

from sagemaker_dist.contract import DataParallel, MiB
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
    ],
)
def test_value_out_of_range_is_named(name, value):
    """The error has the option, the value, and the range to stay in."""
    with pytest.raises(OptionError) as caught:
        DataParallel(**{name: value})

    assert f"{name} is {value!r}" == caught.value.what
    assert "Pass an integer from" in caught.value.mend


def test_two_bad_values_are_one_error():
    """A request is mended in one go."""
    with pytest.raises(OptionErrors) as caught:
        DataParallel(fusion_bytes=1, timeout_seconds=-1)

    assert ["fusion_bytes is 1", "timeout_seconds is -1"] == [f.what for f in caught.value.faults]
    assert "2 faults" in str(caught.value)


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
