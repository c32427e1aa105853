# SPDX-License-Identifier: Apache-2.0
"""The typed options of the field's distributions, and the dicts that they spell."""

import pickle

import pytest

from sagemaker_dist.contract import DataParallel, read_distribution
from sagemaker_dist.contract.aws_distributions import (
    MPI,
    SMDDP,
    MultiWorkerMirroredStrategy,
    OnInstanceGroup,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    TorchDistributed,
)
from sagemaker_dist.errors import OptionError, OptionErrors

ON = {"enabled": True}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (DataParallel(), {"smdist": {"dataparallel": DataParallel().distribution()["smdist"]
                                     ["dataparallel"]}}),
        (TorchDistributed(), {"torch_distributed": ON}),
        (PyTorchDDP(), {"pytorchddp": ON}),
        (PyTorchDDP(custom_mpi_options="-v"), {"pytorchddp": {**ON, "custom_mpi_options": "-v"}}),
        (PyTorchXLA(), {"pytorchxla": ON}),
        (MPI(), {"mpi": ON}),
        (
            MPI(processes_per_host=8, custom_mpi_options="-x A=1"),
            {"mpi": {**ON, "processes_per_host": 8, "custom_mpi_options": "-x A=1"}},
        ),
        (ParameterServer(), {"parameter_server": ON}),
        (MultiWorkerMirroredStrategy(), {"multi_worker_mirrored_strategy": ON}),
        (SMDDP(), {"smdistributed": {"dataparallel": ON}}),
        (
            SMDDP(custom_mpi_options="-v"),
            {"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": "-v"}}},
        ),
        (
            OnInstanceGroup(strategy=TorchDistributed(), group="train"),
            {"torch_distributed": ON, "instance_groups": ["train"]},
        ),
    ],
)  # fmt: skip
def test_options_spell_the_dicts_that_users_have(option, expected):
    """And both are read alike."""
    assert expected == option.distribution()
    assert read_distribution(expected) == read_distribution(option)
    assert option == pickle.loads(pickle.dumps(option))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: MPI(processes_per_host=0), "processes_per_host of MPI is 0: a host starts"),
        (lambda: MPI(processes_per_host=True), "processes_per_host of MPI is True"),
        (lambda: MPI(processes_per_host="8"), "processes_per_host of MPI is '8'"),
        (lambda: SMDDP(custom_mpi_options=["-v"]), "custom_mpi_options of SMDDP is ['-v']"),
        (lambda: OnInstanceGroup(strategy="mpi", group="a"), "OnInstanceGroup is 'mpi': it is no"),
        (
            lambda: OnInstanceGroup(
                strategy=OnInstanceGroup(strategy=MPI(), group="a"), group="b"
            ),
            "it is not a typed option of sagemaker_dist for one distribution",
        ),
    ],
)  # fmt: skip
def test_options_check_themselves(build, text):
    with pytest.raises(OptionError) as caught:
        build()

    assert text in str(caught.value)


def test_all_faults_of_an_option_come_together():
    with pytest.raises(OptionErrors) as caught:
        MPI(processes_per_host=0, custom_mpi_options=None)

    assert 2 == len(caught.value.faults)
