# SPDX-License-Identifier: Apache-2.0
"""SMP v1's parameters in the sagemaker-dist image: each key works, or is refused with a hint."""

import warnings

import pytest
from error_fields import fields_of, fields_raised
from smp_requests import VALID_V1

from sagemaker_dist.contract import (
    DataParallel,
    ModelParallel,
    claim_for_launcher,
    read_distribution,
)
from sagemaker_dist.contract.aws_distributions import MPI
from sagemaker_dist.contract.smp import runtime_faults, smp_warnings
from sagemaker_dist.contract.smp.keys import V1
from sagemaker_dist.contract.smp.to_model_parallel import REFUSED
from sagemaker_dist.errors import OptionError

ON = {"enabled": True}
PLAIN = {"pipeline_parallel_degree": 2}
DEFAULTS = {
    "pipeline_parallel_degree": 2,
    "microbatches": 1,
    "pipeline": "interleaved",
    "optimize": "memory",
}
SHARDED = {"sharding": "full", "shard_degree": 2, "gradient_clipping": 1.0}
MEANS = [  # parameters, and the options that mean the same
    ({}, {}),
    ({"microbatches": 4, "pipeline": "simple"}, {"microbatches": 4, "pipeline": "simple"}),
    ({"optimize": "speed"}, {"optimize": "speed"}),
    ({"memory_weight": 0.3}, {"memory_weight": 0.3, "optimize": None}),
    ({"memory_weight": 0.3, "optimize": "speed"}, {"memory_weight": 0.3, "optimize": None}),
    ({"active_microbatches": 3}, {"active_microbatches": 3}),
    ({"placement_strategy": "spread"}, {"placement_strategy": "spread"}),
    ({"placement_strategy": "PTD"}, {"placement_strategy": "PTD"}),
    ({"ddp": True}, {}),
    ({"ddp": True, "ddp_dist_backend": "auto"}, {}),
    ({"deterministic_server": True}, {}),
    ({"deterministic_server": False}, {}),
    ({"shard_optimizer_state": True}, {"sharding": "optimizer"}),
    ({"shard_optimizer_state": False, "sharded_data_parallel_degree": 1}, {}),
    ({"sharded_data_parallel_degree": 2}, SHARDED),
    (
        {"sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 0.5, "bf16": True},
        {**SHARDED, "gradient_clipping": 0.5, "bf16": True},
    ),
    (
        {"auto_partition": False, "default_partition": 1},
        {"auto_partition": False, "default_partition": 1, "optimize": None},
    ),
    ({"auto_partition": True, "tensor_parallel_degree": 1, "prescaled_batch": False}, {}),
    ({"fp16": False, "fp16_params": False, "bf16": False, "offload_activations": False}, {}),
    ({"fp16": True}, {"fp16": True}),
    ({"fp16": True, "sharded_data_parallel_degree": 2}, {**SHARDED, "fp16": True}),
    ({"offload_activations": True}, {"offload_activations": True}),
    (
        {"offload_activations": True, "activation_loading_horizon": 2},
        {"offload_activations": True, "activation_loading_horizon": 2},
    ),
    ({"horovod": False, "load_partition": False, "skip_tracing": False}, {}),
    ({"horovod": True, "contiguous": True}, {}),
    ({"delayed_parameter_initialization": False, "static_mode": False, "fast_mode": False}, {}),
]
HAS_NO_EFFECT = [
    ({"static_mode": True}, "static_mode=True"),
    ({"delayed_parameter_initialization": True}, "delayed_parameter_initialization=True"),
    ({"fast_mode": True}, "fast_mode=True"),
    ({"skip_tracing": True}, "skip_tracing=True"),
    ({"ddp": False}, "ddp=False"),
    ({"ddp": True, "ddp_dist_backend": "nccl"}, "ddp_dist_backend='nccl'"),
    ({"activation_loading_horizon": 4}, "activation_loading_horizon"),
    ({"prescaled_batch": True}, "prescaled_batch"),
    ({"default_partition": 1}, "default_partition"),
    ({"sdp_gradient_clipping": 1.0}, "sdp_gradient_clipping"),
    ({"sdp_reduce_bucket_size": 5}, "sdp_reduce_bucket_size"),
    ({"sdp_param_persistence_threshold": 5}, "sdp_param_persistence_threshold"),
    ({"sdp_max_live_parameters": 5}, "sdp_max_live_parameters"),
    ({"sdp_hierarchical_allgather": False}, "sdp_hierarchical_allgather"),
]
SHARDED = {"sharded_data_parallel_degree": 2}
NO = [
    ({"contiguous": False}, "contiguous", "unsupported"),
    ({"ddp": True, "ddp_port": 1234}, "ddp_port", "unsupported"),
    ({"fp16_params": True}, "fp16_params", "unsupported"),
    ({"bf16": True}, "bf16", "conflict"),
    ({"load_partition": True}, "load_partition", "unsupported"),
    ({"partition_file": "a"}, "partition_file", "unsupported"),
    ({"pipeline": "_only_forward"}, "pipeline", "unsupported"),
    ({"pipeline": "simple", "active_microbatches": 2}, "active_microbatches", "conflict"),
    ({**SHARDED, "sdp_reduce_bucket_size": 5}, "sdp_reduce_bucket_size", "unsupported"),
    (
        {**SHARDED, "sdp_param_persistence_threshold": 5},
        "sdp_param_persistence_threshold",
        "unsupported",
    ),
    ({**SHARDED, "sdp_max_live_parameters": 5}, "sdp_max_live_parameters", "unsupported"),
    ({**SHARDED, "sdp_hierarchical_allgather": True}, "sdp_hierarchical_allgather", "unsupported"),
    ({**SHARDED, "sdp_gradient_clipping": 0}, "sdp_gradient_clipping", "option"),
    ({**SHARDED, "shard_optimizer_state": True}, "shard_optimizer_state", "conflict"),
    ({"partitions": 2}, "pipeline_parallel_degree", "conflict"),
    ({"auto_partition": False}, "auto_partition", "conflict"),
    ({"auto_partition": False, "default_partition": 2}, "default_partition", "conflict"),
    ({"microbatchs": 4}, "microbatchs", "unknown"),
    ({"hybrid_shard_degree": 4}, "hybrid_shard_degree", "unsupported"),
]


@pytest.mark.parametrize(("given", "options"), MEANS)
def test_what_works_means_what_aws_says(given, options):
    expected = ModelParallel(**{**DEFAULTS, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert expected == ModelParallel.from_smp({**PLAIN, **given})


@pytest.mark.parametrize(("given", "name"), HAS_NO_EFFECT)
def test_what_changes_nothing_is_warned_of(given, name):
    """Each key once, and the rest holds."""
    with pytest.warns(UserWarning, match=name) as caught:
        model = ModelParallel.from_smp({**PLAIN, **given})

    assert [name] == [str(each.message).partition(" ")[0] for each in caught]
    assert ModelParallel(**DEFAULTS) == model


@pytest.mark.parametrize(("given", "about", "kind"), NO)
def test_what_does_not_work_is_refused(given, about, kind):
    assert [(about, kind)] == fields_raised(lambda: ModelParallel.from_smp({**PLAIN, **given}))


def test_layers_in_float16_add_nothing_to_a_model_in_float16():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ModelParallel.from_smp({**PLAIN, "fp16": True, "fp16_params": True})

    assert 1 == len(caught)
    assert ModelParallel(**{**DEFAULTS, "fp16": True}) == model


def test_text_of_what_does_not_work():
    """The hint has what to use instead."""
    with pytest.raises(OptionError) as caught:
        ModelParallel.from_smp({**PLAIN, "load_partition": True})

    assert str(caught.value) == (
        "the dict of modelparallel has load_partition=True: partition files of AWS's library have a"
        " format of their own. Use ModelParallel(plan='plan.json') with a plan that sagemaker-dist"
        " saved."
    )


def test_every_key_is_tried_here():
    """A key of AWS's that no test names could be accepted and do nothing."""
    tried = {name for rows in (MEANS, HAS_NO_EFFECT, NO) for given, *_ in rows for name in given}

    assert set(V1) <= tried | set(PLAIN)
    assert set(REFUSED) <= set(V1)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VALID_V1.items() for value in values]
)
def test_every_valid_value_ends_well_or_in_a_fault_of_its_own(name, value):
    """What passes the checks can be made an option; nothing raises anything else."""
    given = {**({} if name in ("partitions", *PLAIN) else PLAIN), name: value}
    faults = list(runtime_faults(given))
    if faults:
        assert (name,) == faults[0].about
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")

            assert isinstance(ModelParallel.from_smp(given), ModelParallel)
    list(smp_warnings(given))


def test_partitions_is_the_old_name_of_stages():
    assert ModelParallel.from_smp({"partitions": 2}) == ModelParallel.from_smp(PLAIN)


def test_split_layers_need_no_stages_and_one_batch_for_those_that_share_them():
    """What AWS's default of prescaled_batch would mean is refused, and its absence is warned of."""
    split = {"tensor_parallel_degree": 2, "ddp": True}
    wrong = {**split, "prescaled_batch": False}

    model = ModelParallel.from_smp({**split, "prescaled_batch": True})

    assert (2, 1) == (model.tensor_parallel_degree, model.pipeline_parallel_degree)
    assert 1 == len(list(smp_warnings(split)))
    assert [("prescaled_batch", "unsupported")] == fields_raised(
        lambda: ModelParallel.from_smp(wrong)
    )


def test_without_stages_nothing_is_guessed():
    """AWS has a default where data parallelism is sharded, and none elsewhere."""
    assert [("pipeline_parallel_degree", "missing")] == fields_raised(
        lambda: ModelParallel.from_smp({"microbatches": 4})
    )
    sharded = ModelParallel.from_smp({"sharded_data_parallel_degree": 2})

    assert 1 == sharded.pipeline_parallel_degree


def test_faults_come_at_once():
    wrong = {"microbatches": 0, "load_partition": True, "foo": 1}

    assert [
        ("microbatches", "option"),
        ("foo", "unknown"),
        ("load_partition", "unsupported"),
    ] == fields_of(runtime_faults({**PLAIN, **wrong}))


def asked(parameters, **beside):
    section = {"modelparallel": {**ON, "parameters": parameters}}
    return claim_for_launcher(read_distribution({"smdistributed": section, **beside}))


@pytest.mark.parametrize(
    ("beside", "processes"),
    [
        ({}, None),
        ({"mpi": ON}, 1),
        ({"mpi": {**ON, "processes_per_host": 2}}, 2),
        ({"mpi": {**ON, "processes_per_host": None, "custom_mpi_options": ""}}, 1),
        ({"mpi": {"enabled": False, "processes_per_host": 2}}, None),
        (MPI(processes_per_host=4).distribution(), 4),
    ],
)
def test_our_launcher_takes_awss_request_over(beside, processes):
    """With the ranks that mpi would start: one per host by default."""
    taken = asked({**PLAIN, "microbatches": 4, "static_mode": True}, **beside)
    engine = DataParallel(processes_per_host=processes)

    assert ModelParallel(**{**DEFAULTS, "microbatches": 4, "engine": engine}) == taken.model
    assert engine == taken.engine
    assert {} == taken.rest
    assert 1 == len(taken.warnings)


@pytest.mark.parametrize(
    ("parameters", "beside"),
    [
        ({"load_partition": True, **PLAIN}, {}),
        (PLAIN, {"mpi": {**ON, "custom_mpi_options": "-host a"}}),
        (PLAIN, {"mpi": {**ON, "processes_per_host": 2000}}),
        (PLAIN, {"torch_distributed": ON}),
        ("no/dict", {}),
        ({}, {}),
    ],
)
def test_what_it_cannot_take_over_is_left_to_the_checks(parameters, beside):
    left = asked(parameters, **beside)

    assert not left.is_launched
    assert "smdistributed" in left.rest
