# SPDX-License-Identifier: Apache-2.0
"""Checks of AWS's model parallel options as a dict: every wrong request is reported."""

import warnings
from itertools import product

import pytest
from smp_requests import (
    COMPANIONS,
    PP,
    RIGHT_V1,
    RIGHT_V2,
    SDP,
    TEXTS,
    TP,
    VALID_V1,
    VALID_V2,
    WRONG,
    WRONG_V1,
    WRONG_V2,
)

from sagemaker_dist.contract import smp_faults
from sagemaker_dist.contract.smp.keys import V1, V2


def messages(parameters, version):
    return [str(fault) for fault in smp_faults(parameters, version=version, where="P")]


@pytest.mark.parametrize(("version", "parameters", "kind", "key"), WRONG)
def test_a_wrong_request_is_one_fault(version, parameters, kind, key):
    """The fault has the key, and its kind distinguishes values from conflicts."""
    assert [(kind, (key,))] == [
        (fault.kind, fault.about) for fault in smp_faults(parameters, version=version, where="P")
    ]


@pytest.mark.parametrize(("version", "parameters", "text"), TEXTS)
def test_messages_of_wrong_requests(version, parameters, text):
    """A message has the place, the key and its value, the reason and a hint."""
    assert [f"P has {text}"] == messages(parameters, version)


def test_every_key_has_a_wrong_request_and_a_right_one():
    """The tables of this file leave no key out."""
    alone = {"default_partition", "ddp_port", "ddp_dist_backend"}

    assert set(V1) == {key for case, *_ in WRONG_V1 for key in case}
    assert set(V2) == {key for case, *_ in WRONG_V2 for key in case}
    assert set(V1) - alone == set(VALID_V1)
    assert set(V2) == set(VALID_V2)
    assert alone <= {key for case in COMPANIONS for key in case}


@pytest.mark.parametrize(
    ("version", "parameters"),
    [(1, case) for case in RIGHT_V1] + [(2, case) for case in RIGHT_V2],
)
def test_a_right_request_passes(version, parameters):
    """So it does where the version is not known."""
    assert [] == messages(parameters, version)
    assert [] == messages(parameters, None)


@pytest.mark.parametrize(
    ("version", "parameters", "expected"),
    [
        (
            1,
            {"pipeline_paralel_degree": 2},
            f"P has the key 'pipeline_paralel_degree': no such key exists. Did you mean '{PP}'?",
        ),
        (
            2,
            {"tensor_paralel_degree": 2},
            f"P has the key 'tensor_paralel_degree': no such key exists. Did you mean '{TP}'?",
        ),
        (
            None,
            {"hybrid_shard": 2},
            "P has the key 'hybrid_shard': no such key exists. Did you mean 'hybrid_shard_degree'?",
        ),
        (
            1,
            {"hybrid_shard_degree": "x"},
            "P has the key 'hybrid_shard_degree': it is a key of SMP v2, which torch_distributed"
            " starts. Leave it out, or start the job with torch_distributed.",
        ),
        (
            2,
            {"microbatches": 4},
            "P has the key 'microbatches': it is a key of SMP v1, which mpi starts."
            " Leave it out, or start the job with mpi.",
        ),
        (
            1,
            {},
            f"P is empty: SageMaker's SDK then sends nothing to the library. Add '{PP}'.",
        ),
        (
            2,
            {},
            "P is empty: SageMaker's SDK then sends nothing to the library. Add"
            " 'hybrid_shard_degree'.",
        ),
        (
            None,
            {},
            "P is empty: SageMaker's SDK then sends nothing to the library."
            f" Add '{PP}' for SMP v1 or 'hybrid_shard_degree' for SMP v2.",
        ),
    ],
)
def test_a_key_that_has_no_place_is_told(version, parameters, expected):
    assert [expected] == messages(parameters, version)


@pytest.mark.parametrize("key", sorted((set(V1) ^ set(V2)) - {"placement_strategy"}))
def test_a_key_belongs_to_its_version(key):
    """The other version refuses it whatever its value is, and says who starts which."""
    home, other, starter = (1, 2, "mpi") if key in V1 else (2, 1, "torch_distributed")

    assert [f"it is a key of SMP v{home}, which {starter} starts"] == [
        fault.why for fault in smp_faults({key: 1}, version=other, where="P")
    ]


def test_without_a_version_only_keys_are_checked():
    """Rules between keys wait until it is known which library runs."""
    parameters = {TP: 2, "bf16": True, "hybrid_shard_degree": 2, "context_parallel_degree": 4}

    assert [] == messages(parameters, None)
    assert [
        f"P has {TP}=0: a layer is on at least one rank. Pass an integer of at least 1."
    ] == messages({TP: 0}, None)


def test_a_rule_is_silent_about_a_value_that_is_wrong_by_itself():
    """One mistake is one fault."""
    for given in ({TP: 2, "ddp": "yes"}, {TP: 2, "ddp": 0}, {"horovod": True, "ddp": "true"}):
        (fault,) = smp_faults(given, version=1, where="P")

        assert ("option", ("ddp",)) == (fault.kind, fault.about)
    assert 1 == len(messages({"bf16": True, SDP: "2"}, 1))
    assert 1 == len(messages({"default_partition": 0, "partitions": "2"}, 1))
    assert 1 == len(messages({"context_parallel_degree": 4, "hybrid_shard_degree": "2"}, 2))


@pytest.fixture(scope="module")
def validate_mp_config():
    """SageMaker's own check of the parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 2 of the SDK says that it is old
        from sagemaker import fw_utils

    return fw_utils.validate_mp_config


def refused(validate, parameters):
    try:
        validate(parameters)
    except (ValueError, TypeError, KeyError):
        return True
    return False


def test_the_sdk_takes_what_we_take(validate_mp_config):
    """All but the orders of ranks for which it has no name."""
    cases = [case for case in RIGHT_V1 if len(case.get("placement_strategy", "cluster")) > 3]

    assert [] == [case for case in cases if refused(validate_mp_config, case)]
    assert 6 == len(RIGHT_V1) - len(cases)


def test_what_the_sdk_refuses_we_refuse(validate_mp_config):
    """Every value of a table of likely ones, alone and beside what rules look at."""
    values = (None, True, False, "true", -1, 0, 1, 2, 0.5, 1.5, "simple", "cluster", "speed")
    beside = ({}, {"ddp": True}, {"partitions": 2}, {"auto_partition": False})
    cases = [
        {**other, key: value}
        for key, value, other in product(V1, values, beside)
        if key not in other
    ]

    silent = [case for case in cases if refused(validate_mp_config, case) and not messages(case, 1)]

    assert [] == silent
    assert 500 < len(cases)
