# SPDX-License-Identifier: Apache-2.0
"""Checks of AWS's model parallel options as a dict: every wrong request is reported."""

import warnings
from itertools import product

import pytest
from error_fields import fields_of
from smp_requests import (
    COMPANIONS,
    PP,
    RIGHT_V1,
    RIGHT_V2,
    SDP,
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


def test_text_of_a_wrong_request():
    """The text has the place, the keys and their values, the reason and a hint."""
    parameters = {"context_parallel_degree": 8, "hybrid_shard_degree": 4}
    (fault,) = smp_faults(parameters, version=2, where="P")

    assert str(fault) == (
        "P has context_parallel_degree=8 with hybrid_shard_degree=4: a sequence is split over the"
        " ranks of one sharding group. Pass a context_parallel_degree of 1 to 4, or a"
        " hybrid_shard_degree of at least 8."
    )


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
    ("version", "key", "meant"),
    [
        (1, "pipeline_paralel_degree", PP),
        (2, "tensor_paralel_degree", TP),
        (None, "hybrid_shard", "hybrid_shard_degree"),
    ],
)
def test_a_misspelt_key_is_told_with_the_one_that_is_meant(version, key, meant):
    (fault,) = smp_faults({key: 2}, version=version, where="P")

    assert [(key, "unknown")] == fields_of(fault)
    assert repr(meant) in fault.hint


@pytest.mark.parametrize(
    ("version", "named"),
    [(1, {PP}), (2, {"hybrid_shard_degree"}), (None, {PP, "hybrid_shard_degree"})],
)
def test_parameters_that_are_empty_are_refused(version, named):
    """SageMaker's SDK would send nothing; a key to add is named."""
    (fault,) = smp_faults({}, version=version, where="P")

    assert [("", "missing")] == fields_of(fault)
    assert named == {key for key in (PP, "hybrid_shard_degree") if key in fault.hint}


@pytest.mark.parametrize("key", sorted((set(V1) ^ set(V2)) - {"placement_strategy"}))
def test_a_key_belongs_to_its_version(key):
    """The other version refuses it whatever its value is, and says who starts which."""
    other, starter = (2, "mpi") if key in V1 else (1, "torch_distributed")
    for value in (1, "x"):
        (fault,) = smp_faults({key: value}, version=other, where="P")

        assert [(key, "unsupported")] == fields_of(fault)
        assert starter in fault.hint


def test_without_a_version_only_keys_are_checked():
    """Rules between keys wait until it is known which library runs."""
    parameters = {TP: 2, "bf16": True, "hybrid_shard_degree": 2, "context_parallel_degree": 4}

    assert [] == messages(parameters, None)
    assert [(TP, "option")] == fields_of(smp_faults({TP: 0}, version=None, where="P"))


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
