# SPDX-License-Identifier: Apache-2.0
"""ModelParallel checks itself, and shares out ranks and batches."""

import json
import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract import DataParallel, ModelParallel, read_distribution, render
from sagemaker_dist.contract.ranges import size_in_bytes
from sagemaker_dist.contract.schedule_limits import PIPELINES, pipeline_faults
from sagemaker_dist.contract.smp.keys import V1
from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.core.planner.problem import OPTIMIZE
from smdist.modelparallel.core.schedule import SCHEDULES
from smdist.modelparallel.torch.planning.plan_request import read_size

WRONG = {
    "pipeline_parallel_degree": (0, -1, True, 1.0, "4", None, (1 << 20) + 1),
    "tensor_parallel_degree": (0, True, "auto", 2.0, None),
    "sequence_parallel": (1, None, "yes"),
    "microbatches": (0, "all", None),
    "pipeline": ("gpipe", None, 1),
    "active_microbatches": (0, "2"),
    "virtual_stages": (0, 1.5),
    "placement_strategy": ("DPX", "dpt", None),
    "optimize": ("both", 1),
    "memory_weight": (-0.1, 1.1, True, float("nan"), "0.5"),
    "auto_partition": (1, None, "yes"),
    "default_partition": (-1, 0.0),
    "plan": ("", 3),
    "device_memory": (0, "16 gigabytes", "16Gb", -1, 1.5, True, "99999999999TB"),
    "sharding": ("half", None, True),
    "shard_degree": (0, True),
    "gradient_reduction": ("never", None, 1),
    "gradient_clipping": (0, -1.0, float("inf"), float("nan"), True, "1"),
    "bf16": (1, None),
    "fp16": (1, "O2"),
    "offload_activations": (1, None, "yes"),
    "activation_loading_horizon": (0, True, 2.0, "4"),
    "offload_optimizer": (1, None, "cpu"),
    "global_batch_size": (0, 6.4),
    "seed": (-1, 2**63, 1.0, None),
    "engine": (None, 4, DataParallel),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, all_ in WRONG.items() for v in all_])
def test_a_wrong_value_is_named(name, value):
    assert [(name, "option")] == fields_raised(lambda: ModelParallel(**{name: value}))


def test_sequences_are_split_over_the_ranks_of_split_layers_alone():
    with pytest.raises(OptionError) as caught:
        ModelParallel(sequence_parallel=True)

    assert [("sequence_parallel", "conflict")] == fields_of(caught.value)
    assert ModelParallel(tensor_parallel_degree=2, sequence_parallel=True).sequence_parallel


def test_text_of_a_wrong_value():
    """The text has the option, its value, and what it may be."""
    with pytest.raises(OptionError) as caught:
        ModelParallel(optimize="half")

    text = str(caught.value)
    assert all(part in text for part in ("optimize", "'half'", "'speed'", "'memory'"))


def test_a_class_variable_is_no_option():
    """The field names of `engine` are a class variable of the options."""
    assert [("nested", "unknown")] == fields_raised(lambda: ModelParallel(nested={}))


def test_every_option_has_wrong_values():
    """A new option needs a check of its own."""
    assert {each.name for each in fields(ModelParallel)} == set(WRONG)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"optimize": "speed", "memory_weight": 0.5}, [("optimize", "conflict")]),
        ({"default_partition": 0}, [("default_partition", "conflict")]),
        ({"auto_partition": False, "optimize": "speed"}, [("optimize", "conflict")]),
        ({"auto_partition": False, "memory_weight": 0.5}, [("memory_weight", "conflict")]),
        (
            {
                "auto_partition": False,
                "default_partition": 2,
                "pipeline_parallel_degree": 2,
                "virtual_stages": 1,
            },
            [("default_partition", "option")],
        ),
        ({"shard_degree": 2}, [("shard_degree", "conflict")]),
        ({"gradient_reduction": "step"}, [("gradient_reduction", "conflict")]),
        (
            {"sharding": "full", "gradient_reduction": "microbatch", "pipeline": "zero_bubble"},
            [("gradient_reduction", "conflict")],
        ),
        (
            {"sharding": "auto", "pipeline": "simple", "offload_activations": True},
            [("offload_activations", "conflict"), ("pipeline", "conflict")],
        ),
        (
            {"sharding": "auto", "offload_optimizer": True},
            [("offload_optimizer", "conflict")],
        ),
        ({"bf16": True, "fp16": True}, [("bf16", "conflict")]),
        (
            {"activation_loading_horizon": 4},
            [("activation_loading_horizon", "conflict")],
        ),
        (
            {"pipeline": "1f1b", "active_microbatches": 2, "virtual_stages": 2},
            [("active_microbatches", "conflict"), ("virtual_stages", "conflict")],
        ),
        (
            {"pipeline": "dualpipe_v", "microbatches": 4, "pipeline_parallel_degree": 4},
            [("microbatches", "conflict")],
        ),
        (
            {"plan": "plan.json", "pipeline": "1f1b", "optimize": "speed", "device_memory": 9},
            [(name, "conflict") for name in ("pipeline", "optimize", "device_memory")],
        ),
        (
            {"microbatches": 0, "shard_degree": 2, "engine": {"lanes": 99, "foo": 1}},
            [
                ("microbatches", "option"),
                ("shard_degree", "conflict"),
                ("engine.foo", "unknown"),
                ("engine.lanes", "option"),
            ],
        ),
    ],
)
def test_options_that_exclude_each_other_are_told_at_once(options, expected):
    assert expected == fields_raised(lambda: ModelParallel(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"auto_partition": False},
        {"auto_partition": False, "default_partition": 3},
        {"plan": "plans/plan.json", "pipeline_parallel_degree": 2, "microbatches": 4},
        {"pipeline": "interleaved", "active_microbatches": 1},
        {"active_microbatches": 1},
        {"pipeline": "zero_bubble", "virtual_stages": 3},
        {"sharding": "optimizer", "shard_degree": 1},
        {"sharding": "full", "bf16": True},
        {"fp16": True},
        {"device_memory": "16 GB"},
        {"engine": {"lanes": 4, "shard_weights": [1, 2]}},
    ],
)
def test_its_dict_says_the_same(options):
    """Also through JSON, which has no tuples; options stay hashable and can be sent to workers."""
    made = ModelParallel(**options)
    asked = read_distribution(json.loads(json.dumps(made.distribution())))

    assert made == asked.model == asked.options
    assert made.engine == asked.engine
    assert hash(made) == hash(asked.model)
    assert made == pickle.loads(pickle.dumps(made))


def test_a_path_becomes_text():
    assert "plans/a.json" == ModelParallel(plan=Path("plans/a.json")).plan


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"modelparallel": {"microbatchs": 4}}, [("modelparallel.microbatchs", "unknown")]),
        (
            {"modelparallel": {"microbatches": 0, "seed": -1}},
            [("modelparallel.microbatches", "option"), ("modelparallel.seed", "option")],
        ),
        ({"modelparallel": {}, "dataparallel": {}}, [("", "conflict")]),
        ({"modelparallel": {"enabled": 1}}, [("modelparallel.enabled", "type")]),
    ],
)
def test_faults_of_the_dict_form(value, expected):
    found = fields_raised(lambda: read_distribution({"smdist": value}))

    assert [(f"distribution.smdist.{about}".rstrip("."), kind) for about, kind in expected] == found


def test_the_hint_names_the_schedules_that_fit():
    (fault,) = pipeline_faults("1f1b", virtual_stages=2, active_microbatches=None)

    assert "virtual_stages" == fault.about[-1]
    assert str(fault) == (
        "virtual_stages is 2 with pipeline='1f1b': the schedule needs 1 stage on each rank. Pass"
        " virtual_stages=1, or pipeline='interleaved_1f1b' or 'looped_bfs' or 'zero_bubble' or"
        " 'zero_bubble_v' or 'dualpipe_v'."
    )


def test_an_option_of_the_engine_is_passed_to_the_engine():
    with pytest.raises(OptionError) as caught:
        ModelParallel(processes_per_host=2)

    assert (("processes_per_host",), "unknown") == (caught.value.about, caught.value.kind)
    assert "engine=DataParallel(processes_per_host=...)" in caught.value.hint


def test_a_dict_that_is_off_asks_for_nothing():
    assert read_distribution({"smdist": {"modelparallel": {"enabled": False}}}).options is None


def test_the_example_of_the_guide():
    """2-way data x 4-way model is 8 ranks; 64 samples are 32 each; 640 records are 10 steps."""
    model = ModelParallel(pipeline_parallel_degree=4, microbatches=4, global_batch_size=64)

    assert 2 == model.replicas(8)
    assert 32 == model.batch_per_replica(8)
    assert 10 == model.iterations(640)
    assert 11 == model.iterations(641)


@pytest.mark.parametrize(
    ("options", "world", "about", "numbers"),
    [
        ({"pipeline_parallel_degree": 4}, 6, "pipeline_parallel_degree", [4, 8, 3, 6]),
        (
            {"pipeline_parallel_degree": 2, "sharding": "full", "shard_degree": 3},
            8,
            "pipeline_parallel_degree",
            [6, 12, 4, 8],
        ),
        (
            {"pipeline_parallel_degree": 2, "global_batch_size": 62},
            8,
            "global_batch_size",
            [60, 64],
        ),
        (
            {"pipeline_parallel_degree": 4, "global_batch_size": 64, "microbatches": 5},
            8,
            "microbatches",
            [4, 8, 60, 70],
        ),
        ({"sharding": "full", "shard_degree": 3}, 8, "shard_degree", [6, 9, 2, 4]),
    ],
)
def test_what_does_not_divide_is_told_with_numbers_that_do(options, world, about, numbers):
    with pytest.raises(OptionError) as caught:
        ModelParallel(**options).replicas(world)

    assert [(about, "indivisible")] == fields_of(caught.value)
    assert numbers == [int(each) for each in re.findall(r"\d+", caught.value.hint)]


def test_text_of_what_does_not_divide():
    """The text has both numbers and where they come from."""
    model = ModelParallel(pipeline_parallel_degree=4, global_batch_size=64, microbatches=5)
    with pytest.raises(OptionError) as caught:
        model.replicas(8)

    assert str(caught.value) == (
        "microbatches is 5 and the batch of a replica is 32 (64 / 2): microbatches have equal"
        " sizes, and 32 is not a multiple of 5. Pass microbatches=4 or 8, or global_batch_size=60"
        " or 70."
    )


def test_all_misfits_come_at_once():
    model = ModelParallel(
        pipeline_parallel_degree=2, sharding="full", shard_degree=3, global_batch_size=5
    )
    with pytest.raises(OptionErrors) as caught:
        model.batch_per_replica(8)

    assert 2 == len(caught.value.faults)


@given(
    degree=st.integers(1, 8),
    replicas=st.integers(1, 8),
    microbatches=st.integers(1, 8),
    size=st.integers(1, 8),
    records=st.integers(0, 10_000),
)
def test_the_parts_make_the_whole(degree, replicas, microbatches, size, records):
    """Ranks, samples and steps: nothing is left over, and nothing is counted twice."""
    batch = replicas * microbatches * size
    model = ModelParallel(
        pipeline_parallel_degree=degree, microbatches=microbatches, global_batch_size=batch
    )
    world = degree * replicas

    assert replicas == model.replicas(world)
    assert batch == model.batch_per_replica(world) * replicas
    assert records <= model.iterations(records) * batch < records + batch


@given(degree=st.integers(2, 64), world=st.integers(1, 512))
def test_a_world_fits_if_and_only_if_it_is_a_multiple(degree, world):
    model = ModelParallel(pipeline_parallel_degree=degree)
    if world % degree == 0:
        assert world == model.replicas(world) * degree
    else:
        refused = fields_raised(lambda: model.replicas(world))
        assert [("pipeline_parallel_degree", "indivisible")] == refused


def test_what_the_planner_finds_is_open():
    model = ModelParallel(global_batch_size=64)

    assert model.replicas(6) is None
    assert model.batch_per_replica(6) is None
    assert 10 == model.iterations(640)
    assert ModelParallel().iterations(640) is None


def test_documents_have_every_option():
    """The docstring and docs/hyperparameter_format.md, whose example is what we write."""
    text = (Path(__file__).parents[2] / "docs/hyperparameter_format.md").read_text()
    names = [each.name for each in fields(ModelParallel)]

    assert [] == [name for name in names if f"{name}: " not in ModelParallel.__doc__]
    assert [] == [name for name in names if f"`modelparallel.{name}`" not in text]
    assert render(ModelParallel()) in text


def test_schedules_are_those_of_the_runtime():
    """By name: the runtime reads their limits from the contract."""
    assert set(SCHEDULES) == set(PIPELINES)
    assert set(OPTIMIZE) == set(V1["optimize"].choices)


@pytest.mark.parametrize(
    "size", [1, "16GiB", "16 GB", "1.5tib", "7", "3 b", " 2kb ", "Gb", "16Gb", "16gb", 0, 1.5, True,
             None, "1e9", 1 << 60, (1 << 60) + 1, "2 EB"],
)  # fmt: skip
def test_sizes_are_read_as_the_runtime_reads_them(size):
    try:
        theirs = read_size(size, "size")
    except OptionError:
        theirs = None

    assert theirs == size_in_bytes(size)
