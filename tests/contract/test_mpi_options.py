# SPDX-License-Identifier: Apache-2.0
"""Options of mpirun: those that the launcher carries out, and every other one refused by name."""

import pytest
from error_fields import fields_of

from sagemaker_dist.contract.mpi_options import MpiOptions, option_faults, read_mpi_options


def faults(text):
    return list(option_faults(text, "custom_mpi_options", ("custom_mpi_options",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", MpiOptions()),
        ("-x A=1", MpiOptions(variables={"A": "1"})),
        (
            "-x A=1 -x B='two words' -x C=",
            MpiOptions(variables={"A": "1", "B": "two words", "C": ""}),
        ),
        ("-x A=b=c", MpiOptions(variables={"A": "b=c"})),
        ("-x PATH", MpiOptions()),
        (
            "-verbose -x NCCL_DEBUG=VERSION",
            MpiOptions(variables={"NCCL_DEBUG": "VERSION"}, is_verbose=True),
        ),
        ("--verbose", MpiOptions(is_verbose=True)),
        ("-v", MpiOptions(is_verbose=True)),
    ],
)
def test_options_that_the_launcher_carries_out(text, expected):
    assert [] == faults(text)
    assert expected == read_mpi_options(text)


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        ("--mca btl tcp -x A=1 --bind-to none", "unsupported", "has --mca, --bind-to"),
        ("-x A=1 train.py", "unsupported", "has train.py"),
        ("-x", "option", "has -x at its end"),
        ("-x 1A=2", "option", "has -x 1A=2"),
        ("-x RANK=3", "conflict", "sets RANK"),
        ("-x OMPI_COMM_WORLD_SIZE=3", "conflict", "sets OMPI_COMM_WORLD_SIZE"),
        ("-x A='b", "option", "-x A='b"),
        (["-x"], "type", "['-x']"),
    ],
)
def test_every_other_option_is_refused_by_name(text, kind, part):
    (fault,) = faults(text)

    assert [("custom_mpi_options", kind)] == fields_of([fault])
    assert part in fault.what


def test_all_faults_come_at_once():
    assert ["conflict", "option", "unsupported"] == [
        fault.kind for fault in faults("-x RANK=1 -np 4 -x =2")
    ]
