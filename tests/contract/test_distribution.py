# SPDX-License-Identifier: Apache-2.0
"""`distribution=` in its forms, the keys that the launcher serves, and faults of the others."""

from types import SimpleNamespace

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist.contract import (
    DataParallel,
    Distribution,
    MiB,
    aws_distributions,
    claim_for_launcher,
    read_distribution,
)
from sagemaker_dist.errors import OptionError, OptionErrors

ON, OFF = {"enabled": True}, {"enabled": False}
MPIRUN = {"enabled": True, "custom_mpi_options": "-v"}
OURS = Distribution(engine=DataParallel())
SMDDP = {"smdistributed": {"dataparallel": ON}}
SMP = {"smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}
TORCH, DDP, MPI = {"torch_distributed": ON}, {"pytorchddp": ON}, {"mpi": ON}
XLA = {"pytorchxla": ON}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Distribution()),
        ({}, Distribution()),
        (DataParallel(), OURS),
        ({"smdist": {"dataparallel": {}}}, OURS),
        ({"smdist": {"dataparallel": ON}}, OURS),
        ({"smdist": {"dataparallel": OFF}}, Distribution()),
        (
            {"smdist": {"dataparallel": {"fusion_bytes": 8 * MiB}}},
            Distribution(engine=DataParallel(fusion_bytes=8 * MiB)),
        ),
        (SMDDP, Distribution(rest=SMDDP)),
        (MPI, Distribution(rest=MPI)),
        (SMP, Distribution(rest=SMP)),
        (
            {"smdist": {"dataparallel": {}}, "instance_groups": ["a"]},
            Distribution(engine=DataParallel(), rest={"instance_groups": ["a"]}),
        ),
    ],
)
def test_forms_mean_the_same(value, expected):
    """Typed and our dict; the rest goes to SageMaker's SDK untouched."""
    assert expected == read_distribution(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (DataParallel(lanes=2), Distribution(engine=DataParallel(lanes=2))),
        (SMDDP, OURS),
        ({"smdistributed": {"dataparallel": OFF}}, Distribution()),
        (TORCH, Distribution(sdk_key="torch_distributed")),
        (DDP, Distribution(sdk_key="pytorchddp")),
        ({"pytorchddp": MPIRUN}, Distribution(rest={"pytorchddp": MPIRUN})),
        (
            {"smdistributed": {"dataparallel": MPIRUN}},
            Distribution(
                engine=DataParallel(), mpi=aws_distributions.SMDDP(custom_mpi_options="-v")
            ),
        ),
        (
            {"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": "-np 2"}}},
            Distribution(
                rest={"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": "-np 2"}}}
            ),
        ),
        (
            {"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": ""}}},
            OURS,
        ),
        ({"torch_distributed": OFF, **DDP}, Distribution(sdk_key="pytorchddp")),
        ({**TORCH, **SMDDP}, OURS),
        ({"mpi": OFF}, Distribution()),
        (
            MPI,
            Distribution(engine=DataParallel(processes_per_host=1), mpi=aws_distributions.MPI()),
        ),
        (
            {"mpi": {**ON, "processes_per_host": 4, "custom_mpi_options": "-x A=1"}},
            Distribution(
                engine=DataParallel(processes_per_host=4),
                mpi=aws_distributions.MPI(processes_per_host=4, custom_mpi_options="-x A=1"),
            ),
        ),
        ({**MPI, **XLA}, Distribution(rest={**MPI, **XLA})),
        ({**TORCH, **SMP}, Distribution(rest={**TORCH, **SMP})),
        ({**TORCH, **DDP}, Distribution(sdk_key="torch_distributed", rest=DDP)),
        (
            {"smdist": {"dataparallel": {}}, **TORCH},
            Distribution(engine=DataParallel(), rest=TORCH),
        ),
        (
            {**TORCH, "instance_groups": ["a"]},
            Distribution(sdk_key="torch_distributed", groups=("a",)),
        ),
        ({"instance_groups": ["a"]}, Distribution(rest={"instance_groups": ["a"]})),
        ({**TORCH, "instance_groups": []}, Distribution(sdk_key="torch_distributed")),
    ],
)
def test_our_launcher_takes_what_it_serves(value, expected):
    """What is off is gone; what stays in the rest is refused."""
    assert expected == claim_for_launcher(read_distribution(value))


@pytest.mark.parametrize(
    ("value", "about", "kind"),
    [
        ("mpi", "", "type"),
        ({"smdit": {}}, ".smdit", "unknown"),
        ({"torch_distibuted": ON}, ".torch_distibuted", "unknown"),
        ({"deepspeed": ON}, ".deepspeed", "unknown"),
        ({"horovod": ON}, ".horovod", "unknown"),
        ({"smdist": {"dataparalel": {}}}, ".smdist.dataparalel", "unknown"),
        (
            {"smdist": {"dataparallel": {"fusion_mb": 8}}},
            ".smdist.dataparallel.fusion_mb",
            "unknown",
        ),
        ({"smdist": {}}, ".smdist", "missing"),
        ({"smdistributed": {"datparallel": ON}}, ".smdistributed.datparallel", "unknown"),
        (
            {"smdistributed": {"dataparallel": ON, "modelparallel": ON}},
            ".smdistributed",
            "conflict",
        ),
        ({"mpi": {**ON, "process_per_host": 8}}, ".mpi.process_per_host", "unknown"),
        ({"mpi": {**ON, "processes_per_host": 0}}, ".mpi.processes_per_host", "option"),
        ({"mpi": {**ON, "processes_per_host": "8"}}, ".mpi.processes_per_host", "option"),
        ({"mpi": {**ON, "processes_per_host": True}}, ".mpi.processes_per_host", "option"),
        ({"mpi": {**ON, "custom_mpi_options": ["-x"]}}, ".mpi.custom_mpi_options", "type"),
        ({"mpi": {"processes_per_host": 8}}, ".mpi", "missing"),
        ({"mpi": True}, ".mpi", "type"),
        ({"torch_distributed": {"enable": True}}, ".torch_distributed.enable", "unknown"),
        ({"torch_distributed": {"enabled": "False"}}, ".torch_distributed.enabled", "type"),
        ({"torch_distributed": None}, ".torch_distributed", "type"),
        ({"instance_groups": "a"}, ".instance_groups", "type"),
        ({"smdist": True}, ".smdist", "type"),
        ({"smdist": {"dataparallel": True}}, ".smdist", "type"),
        ({"smdistributed": {"modelparallel": 3}}, ".smdistributed", "type"),
        (
            {"smdistributed": {"dataparallel": {"enabled": "False"}}},
            ".smdistributed.dataparallel.enabled",
            "type",
        ),
        (
            {"smdistributed": {"dataparallel": {**ON, "lanes": 2}}},
            ".smdistributed.dataparallel.lanes",
            "unknown",
        ),
        (
            {"smdistributed": {"modelparallel": {**ON, "params": {}}}},
            ".smdistributed.modelparallel.params",
            "unknown",
        ),
        ({"smdist": {"dataparallel": {}}, **SMDDP}, "", "conflict"),
        ({3: {}}, ".3", "unknown"),
    ],
)
def test_what_is_wrong_is_said(value, about, kind):
    """One error with the path of the offending key or value."""
    with pytest.raises(OptionError) as caught:
        read_distribution(value)

    assert [(f"distribution{about}", kind)] == fields_of(caught.value)
    assert not isinstance(caught.value, OptionErrors)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ({"smdit": {}}, "'smdist'"),
        ({"torch_distibuted": ON}, "'torch_distributed'"),
        ({"horovod": ON}, "smdist.dataparallel.tensorflow.keras"),
        ({"deepspeed": ON}, "'torch_distributed'"),
        ({"smdist": {"dataparalel": {}}}, "'dataparallel'"),
        ({"smdist": {"dataparallel": {"fusion_mb": 8}}}, "'fusion_bytes'"),
        ({"smdistributed": {"datparallel": ON}}, "'dataparallel'"),
        ({"mpi": {**ON, "process_per_host": 8}}, "'processes_per_host'"),
        ({"torch_distributed": {"enable": True}}, "'enabled'"),
        ({"smdistributed": {"modelparallel": {**ON, "params": {}}}}, "'parameters'"),
    ],
)
def test_the_hint_names_the_key_that_is_meant(value, meant):
    with pytest.raises(OptionError) as caught:
        read_distribution(value)

    assert meant in caught.value.hint


def test_text_of_an_unknown_key():
    with pytest.raises(OptionError) as caught:
        read_distribution({"smdit": {}})

    assert str(caught.value) == (
        "distribution has the key 'smdit': no such key exists. Did you mean 'smdist'?"
    )


def test_all_faults_of_one_distribution_come_together():
    """A typo beside a bad value: both are in the error."""
    wrong = {"smdit": {}, "smdist": {"dataparallel": {"timeout_seconds": 0}}}

    assert [
        ("distribution.smdit", "unknown"),
        ("distribution.smdist.dataparallel.timeout_seconds", "option"),
    ] == fields_raised(lambda: read_distribution(wrong))


def test_what_a_pipeline_will_know_is_passed_on():
    variable = SimpleNamespace(expr={"Get": "Parameters.N"})  # as SageMaker's SDK has them
    asked = {"mpi": {"enabled": True, "processes_per_host": variable}}

    assert asked == read_distribution(asked).rest
