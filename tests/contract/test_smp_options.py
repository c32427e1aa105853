# SPDX-License-Identifier: Apache-2.0
"""AWS's model parallel options with types check themselves and write what SageMaker's SDK takes."""

import json
from dataclasses import FrozenInstanceError, fields

import pytest
from error_fields import fields_raised
from smp_requests import RIGHT_V1, RIGHT_V2, WRONG

from sagemaker_dist.contract import SMPv1, SMPv2, smp_faults
from sagemaker_dist.contract.smp.keys import MPI, V1, V2
from sagemaker_dist.errors import OptionError, OptionErrors

TYPES = {1: SMPv1, 2: SMPv2}


@pytest.mark.parametrize(
    ("version", "parameters", "kind", "key"),
    [case for case in WRONG if None not in case[1].values()],
)
def test_typed_options_have_the_checks_of_the_dict(version, parameters, kind, key):
    """A None is left out of typed options, but is a wrong value in a dict."""
    with pytest.raises(OptionError) as caught:
        TYPES[version](**parameters)

    assert (kind, (key,)) == (caught.value.kind, caught.value.about)
    assert caught.value.what.startswith(f"{TYPES[version].__name__} has ")


def test_all_faults_come_at_once():
    with pytest.raises(OptionErrors) as caught:
        SMPv1(microbatches=0, bf16=True, fp16=True, processes_per_host=0, custom_mpi_options=["-x"])

    assert [
        ("option", ("microbatches",)),
        ("conflict", ("bf16",)),
        ("conflict", ("bf16",)),
        ("option", ("processes_per_host",)),
        ("option", ("custom_mpi_options",)),
    ] == [(fault.kind, fault.about) for fault in caught.value.faults]


def sent(options):
    return options.distribution()["smdistributed"]["modelparallel"]["parameters"]


# SageMaker's SDK has no name for these.
ORDERS = ("DTP", "PDT", "PTD", "TDP")  # codespell:ignore ptd


@pytest.mark.parametrize(
    "parameters", [case for case in RIGHT_V1 if case.get("placement_strategy") not in ORDERS]
)
def test_version_1_writes_what_it_was_given(parameters):
    """Two orders of ranks go by the names that SageMaker's SDK knows."""
    names = {"DPT": "cluster", "TPD": "spread"}
    expected = {
        key: names.get(value, value) if isinstance(value, str) else value
        for key, value in parameters.items()
    }

    assert expected == sent(SMPv1(**parameters))
    assert [] == list(smp_faults(expected, version=1, where="P"))
    assert SMPv1(**expected) == SMPv1(**json.loads(json.dumps(sent(SMPv1(**parameters)))))


@pytest.mark.parametrize("strategy", ORDERS)
def test_an_order_of_ranks_that_the_sdk_has_no_name_for_stays_as_it_is(strategy):
    """Our image takes it; the checks of SageMaker's images refuse it."""
    assert {"placement_strategy": strategy} == sent(SMPv1(placement_strategy=strategy))


@pytest.mark.parametrize("parameters", RIGHT_V2)
def test_version_2_writes_what_it_was_given(parameters):
    assert parameters == sent(SMPv2(**parameters))


def test_version_1_is_started_by_mpi():
    options = SMPv1(pipeline_parallel_degree=2, processes_per_host=8, custom_mpi_options="-x A=1")

    assert {
        "smdistributed": {
            "modelparallel": {"enabled": True, "parameters": {"pipeline_parallel_degree": 2}}
        },
        "mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A=1"},
    } == options.distribution()
    assert {"enabled": True} == SMPv1(partitions=1).distribution()["mpi"]


def test_version_2_is_started_by_torch_distributed():
    assert {
        "smdistributed": {
            "modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 8}}
        },
        "torch_distributed": {"enabled": True},
    } == SMPv2(hybrid_shard_degree=8).distribution()


@pytest.mark.parametrize("kind", [SMPv1, SMPv2])
def test_options_without_any_option_are_refused(kind):
    """SageMaker's SDK would drop them."""
    assert [("", "missing")] == fields_raised(kind)


def test_options_cannot_be_changed():
    options = SMPv2(hybrid_shard_degree=8)

    with pytest.raises(FrozenInstanceError):
        options.hybrid_shard_degree = 0
    assert {SMPv2(hybrid_shard_degree=8)} == {options}


@pytest.mark.parametrize(("kind", "keys"), [(SMPv1, {*V1, *MPI}), (SMPv2, {*V2})])
def test_every_option_is_described(kind, keys):
    """Each field is a key, each key a field, and all have a line in the docstring."""
    names = [field.name for field in fields(kind)]

    assert keys == set(names)
    assert [] == [name for name in names if f"        {name}: " not in kind.__doc__]
