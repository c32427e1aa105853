# SPDX-License-Identifier: Apache-2.0
"""`distribution=` in its three forms, and what is said about everything else."""

import pytest

from sagemaker_dist.contract import DataParallel, Distribution, MiB, read_distribution
from sagemaker_dist.errors import OptionError, OptionErrors

OURS = Distribution(ours=DataParallel())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Distribution()),
        (DataParallel(), OURS),
        ({"smdist": {"dataparallel": {}}}, OURS),
        ({"smdist": {"dataparallel": {"enabled": True}}}, OURS),
        ({"smdist": {"dataparallel": {"enabled": False}}}, Distribution()),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, OURS),
        ({"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": ""}}}, OURS),
        (
            {"smdist": {"dataparallel": {"fusion_bytes": 8 * MiB}}},
            Distribution(ours=DataParallel(fusion_bytes=8 * MiB)),
        ),
        ({"smdistributed": {"dataparallel": {}}}, Distribution()),
        ({"mpi": {"enabled": True}}, Distribution(rest={"mpi": {"enabled": True}})),
        (
            {"smdistributed": {"modelparallel": {"enabled": True}}},
            Distribution(rest={"smdistributed": {"modelparallel": {"enabled": True}}}),
        ),
    ],
)
def test_three_forms_mean_the_same(value, expected):
    """Typed, our dict, and AWS's dict; the rest goes to SageMaker's SDK untouched."""
    assert expected == read_distribution(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("mpi", "distribution is 'mpi': it is neither"),
        (
            {"smdit": {}},
            "distribution has the key 'smdit': no such key exists. Did you mean 'smdist'",
        ),
        ({"torch_distibuted": {"enabled": True}}, "Did you mean 'torch_distributed'"),
        ({"smdist": {"dataparalel": {}}}, "Did you mean 'dataparallel'"),
        ({"smdist": {"dataparallel": {"fusion_mb": 8}}}, "Did you mean 'fusion_bytes'"),
        ({"smdist": {}}, "is empty: it names no strategy. Name 'dataparallel'"),
        ({"smdistributed": {"datparallel": {}}}, "Did you mean 'dataparallel'"),
        ({"smdistributed": {"dataparallel": {}, "modelparallel": {}}}, "Keep one"),
        ({"mpi": {"process_per_host": 8}}, "Did you mean 'processes_per_host'"),
        ({"torch_distributed": {"enable": True}}, "Did you mean 'enabled'"),
        ({"smdist": True}, "a strategy is a dict of dicts"),
        ({"smdist": {"dataparallel": True}}, "a strategy is a dict of dicts"),
        ({"smdistributed": {"dataparallel": {"enabled": "False"}}}, "enabled='False'"),
        (
            {"smdistributed": {"dataparallel": {"custom_mpi_options": "-x A=1"}}},
            "uses no MPI",
        ),
        (
            {
                "smdist": {"dataparallel": {}},
                "smdistributed": {"dataparallel": {"enabled": True}},
            },
            "both 'smdist' and 'smdistributed'",
        ),
        ({3: {}}, "distribution has the key 3"),
    ],
)
def test_what_is_wrong_is_said(value, text):
    """One error with the offending key or value and the closest valid one."""
    with pytest.raises(OptionError) as caught:
        read_distribution(value)

    assert text in str(caught.value)


def test_all_faults_of_one_distribution_come_together():
    """A typo beside a bad value: both are in the error."""
    with pytest.raises(OptionErrors) as caught:
        read_distribution({"smdit": {}, "smdist": {"dataparallel": {"timeout_seconds": 0}}})

    assert 2 == len(caught.value.faults)
