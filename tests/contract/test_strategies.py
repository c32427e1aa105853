# SPDX-License-Identifier: Apache-2.0
"""The typed options of the field's distributions, and the dicts that they spell."""

import pickle

import pytest
from error_fields import fields_raised

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
from sagemaker_dist.errors import OptionError

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
    ("build", "about", "kind"),
    [
        (lambda: MPI(processes_per_host=0), "processes_per_host", "option"),
        (lambda: MPI(processes_per_host=True), "processes_per_host", "option"),
        (lambda: MPI(processes_per_host="8"), "processes_per_host", "option"),
        (lambda: SMDDP(custom_mpi_options=["-v"]), "custom_mpi_options", "type"),
        (lambda: OnInstanceGroup(strategy="mpi", group="a"), "strategy", "type"),
        (
            lambda: OnInstanceGroup(
                strategy=OnInstanceGroup(strategy=MPI(), group="a"), group="b"
            ),
            "strategy",
            "type",
        ),
    ],
)  # fmt: skip
def test_options_check_themselves(build, about, kind):
    assert [(about, kind)] == fields_raised(build)


def test_text_of_a_wrong_value():
    """The text names the option and its class."""
    with pytest.raises(OptionError) as caught:
        MPI(processes_per_host=0)

    assert str(caught.value) == (
        "processes_per_host of MPI is 0: a host starts between 1 and 1024 ranks. Pass an integer"
        " from 1 to 1024."
    )


def test_all_faults_of_an_option_come_together():
    assert [("processes_per_host", "option"), ("custom_mpi_options", "type")] == fields_raised(
        lambda: MPI(processes_per_host=0, custom_mpi_options=None)
    )
