# SPDX-License-Identifier: Apache-2.0
"""`distribution=` in its forms, the keys that the launcher serves, and faults of the others."""

from types import SimpleNamespace

import pytest

from sagemaker_dist.contract import (
    DataParallel,
    Distribution,
    MiB,
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
            Distribution(rest={"smdistributed": {"dataparallel": MPIRUN}}),
        ),
        (
            {"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": ""}}},
            OURS,
        ),
        ({"torch_distributed": OFF, **DDP}, Distribution(sdk_key="pytorchddp")),
        ({**TORCH, **SMDDP}, OURS),
        ({"mpi": OFF}, Distribution()),
        (MPI, Distribution(rest=MPI)),
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
    ("value", "text"),
    [
        ("mpi", "distribution is 'mpi': it is neither"),
        (
            {"smdit": {}},
            "distribution has the key 'smdit': no such key exists. Did you mean 'smdist'",
        ),
        ({"torch_distibuted": ON}, "Did you mean 'torch_distributed'"),
        ({"deepspeed": ON}, "distribution has the key 'deepspeed': no such key exists."),
        ({"horovod": ON}, "import smdist.dataparallel.tensorflow.keras as hvd"),
        ({"smdist": {"dataparalel": {}}}, "Did you mean 'dataparallel'"),
        ({"smdist": {"dataparallel": {"fusion_mb": 8}}}, "Did you mean 'fusion_bytes'"),
        (
            {"smdist": {}},
            "is empty: it needs 'dataparallel'",
        ),
        ({"smdistributed": {"datparallel": ON}}, "Did you mean 'dataparallel'"),
        ({"smdistributed": {"dataparallel": ON, "modelparallel": ON}}, "Keep one"),
        ({"mpi": {**ON, "process_per_host": 8}}, "Did you mean 'processes_per_host'"),
        ({"mpi": {**ON, "processes_per_host": 0}}, "has processes_per_host=0: a host starts"),
        ({"mpi": {**ON, "processes_per_host": "8"}}, "has processes_per_host='8'"),
        ({"mpi": {**ON, "processes_per_host": True}}, "has processes_per_host=True"),
        (
            {"mpi": {**ON, "custom_mpi_options": ["-x"]}},
            "custom_mpi_options=['-x']: it is",
        ),
        (
            {"mpi": {"processes_per_host": 8}},
            ("has no 'enabled': SageMaker's SDK then ignores the whole key."),
        ),
        ({"mpi": True}, "distribution['mpi'] is True: it is not a dict. Pass {'enabled': True}"),
        ({"torch_distributed": {"enable": True}}, "Did you mean 'enabled'"),
        ({"torch_distributed": {"enabled": "False"}}, "enabled='False'"),
        (
            {"torch_distributed": None},
            ("distribution['torch_distributed'] is None: it is not a dict"),
        ),
        (
            {"instance_groups": "a"},
            "distribution['instance_groups'] is 'a': it is not a list of instance groups",
        ),
        ({"smdist": True}, "its value is a dict of dicts"),
        ({"smdist": {"dataparallel": True}}, "its value is a dict of dicts"),
        ({"smdistributed": {"modelparallel": 3}}, "its value is a dict of dicts"),
        ({"smdistributed": {"dataparallel": {"enabled": "False"}}}, "enabled='False'"),
        ({"smdistributed": {"dataparallel": {**ON, "lanes": 2}}}, "has the key 'lanes'"),
        ({"smdistributed": {"modelparallel": {**ON, "params": {}}}}, "Did you mean 'parameters'"),
        ({"smdist": {"dataparallel": {}}, **SMDDP}, "both 'smdist' and 'smdistributed'"),
        ({3: {}}, "distribution has the key 3"),
    ],
)
def test_what_is_wrong_is_said(value, text):
    """One error with the offending key or value and the closest valid one."""
    with pytest.raises(OptionError) as caught:
        read_distribution(value)

    assert text in str(caught.value)
    assert not isinstance(caught.value, OptionErrors)


def test_all_faults_of_one_distribution_come_together():
    """A typo beside a bad value: both are in the error."""
    with pytest.raises(OptionErrors) as caught:
        read_distribution({"smdit": {}, "smdist": {"dataparallel": {"timeout_seconds": 0}}})

    assert 2 == len(caught.value.faults)


def test_what_a_pipeline_will_know_is_passed_on():
    variable = SimpleNamespace(expr={"Get": "Parameters.N"})  # as SageMaker's SDK has them
    asked = {"mpi": {"enabled": True, "processes_per_host": variable}}

    assert asked == read_distribution(asked).rest
