# SPDX-License-Identifier: Apache-2.0
"""What counts where smp.init and the job were both given something."""

import json
import logging

import pytest

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.core.session_options import chosen, read


def test_nothing_is_the_planners():
    """No configuration anywhere: ModelParallel()."""
    assert ModelParallel() == chosen(None, None) == chosen({}, None)


def test_a_dict_is_smps():
    """Its keys and its defaults: one microbatch, interleaved."""
    assert ModelParallel.from_smp({"partitions": 2}) == read({"partitions": 2})
    assert (2, 1, "interleaved") == (
        read({"partitions": 2}).pipeline_parallel_degree,
        read({"partitions": 2}).microbatches,
        read({"partitions": 2}).pipeline,
    )


@pytest.mark.parametrize("name", ["pipeline_parallel_degree", "partitions"])
def test_a_dict_can_leave_degree_microbatches_and_pipeline_to_the_planner(name):
    """ "auto" stays open; the rest is read as SMP's."""
    options = read({name: "auto", "microbatches": "auto", "pipeline": "auto", "optimize": "speed"})

    assert ("auto", "auto", "auto", "speed") == (
        options.pipeline_parallel_degree,
        options.microbatches,
        options.pipeline,
        options.optimize,
    )


def test_auto_excludes_nothing_wrong():
    """Faults beside an "auto" are found."""
    with pytest.raises(OptionError) as caught:
        read({"partitions": "auto", "microbatches": 0})

    assert ("microbatches",) == caught.value.about


def test_a_file_is_read(tmp_path):
    """JSON of the same dict, by path or by text."""
    path = tmp_path / "smp.json"
    path.write_text(json.dumps({"partitions": 2, "microbatches": 4}))

    assert read({"partitions": 2, "microbatches": 4}) == read(path) == read(str(path))


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_file_that_is_none_is_refused_by_name(tmp_path, text):
    """Missing, no JSON, or no object."""
    path = tmp_path / "smp.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(OptionError) as caught:
        read(path)

    assert ("config",) == caught.value.about


def test_something_else_is_refused():
    """A number configures nothing."""
    with pytest.raises(OptionError) as caught:
        read(2)

    assert ("config",) == caught.value.about


def test_an_unknown_key_is_refused_by_name():
    """With the one that was meant."""
    with pytest.raises(OptionError) as caught:
        read({"partitions": 2, "mikrobatches": 4})

    assert (("mikrobatches",), "unknown") == (caught.value.about, caught.value.kind)
    assert "'microbatches'" in caught.value.hint


def test_a_dict_with_a_key_of_ours_alone_is_ours():
    """Its defaults are ModelParallel's; those of SMP's keys are SMP's."""
    assert ModelParallel(sharding="full", microbatches=2) == read(
        {"sharding": "full", "microbatches": 2}
    )
    assert "auto" == read({"seed": 3}).pipeline
    assert "interleaved" == read({"partitions": 2}).pipeline


def test_what_distribution_gives_is_read_back():
    """As a dict, and from the file of one."""
    options = ModelParallel(pipeline_parallel_degree=2, virtual_stages=2, engine={"lanes": 2})

    assert options == read(options.distribution())
    assert ModelParallel(pipeline_parallel_degree=2) == read(
        {"smdist": {"modelparallel": {"enabled": True, "pipeline_parallel_degree": 2}}}
    )


@pytest.mark.parametrize(
    "config",
    [
        {"smdist": {"dataparallel": {}}},
        {"smdist": 2},
        {"smdist": {"modelparallel": {}}, "partitions": 2},
    ],
)
def test_another_distribution_is_refused(config):
    """One that asks for something else, or for something beside."""
    with pytest.raises(OptionError) as caught:
        read(config)

    assert ("config",) == caught.value.about


def test_keys_of_both_kinds_are_refused_with_their_names():
    """Of one dict only one reading makes sense."""
    with pytest.raises(OptionError) as caught:
        read({"partitions": 2, "ddp": True, "sharding": "full", "seed": 1, "microbatches": 2})

    assert (("config",), "conflict") == (caught.value.about, caught.value.kind)
    assert (
        "the configuration of smp.init mixes keys of ModelParallel and of SMP v1: only"
        " ModelParallel has 'seed', 'sharding', and only SMP v1 has 'ddp', 'partitions'. Use the"
        " keys of ModelParallel(...) alone, or those of SMP v1 alone." == str(caught.value)
    )


@pytest.mark.parametrize(
    ("key", "meant"), [("shardng", "sharding"), ("particions", "partitions"), ("sead", "seed")]
)
@pytest.mark.parametrize("beside", [{}, {"seed": 1}, {"microbatches": 2}])
def test_what_is_meant_may_be_of_either_kind(key, meant, beside):
    """Whichever kind the rest of the dict is."""
    with pytest.raises(OptionError) as caught:
        read({key: 2, **beside})

    assert ((key,), "unknown") == (caught.value.about, caught.value.kind)
    assert f"'{meant}'" in caught.value.hint


def test_options_are_taken_as_they_are():
    """ModelParallel passes through."""
    options = ModelParallel(virtual_stages=2, pipeline="interleaved_1f1b")

    assert options is read(options) is chosen(options, None)
    assert options == chosen(None, options)


def test_the_job_overrides_the_script_and_a_note_names_what(caplog):
    """What the job left open stays the script's."""
    with caplog.at_level(logging.WARNING):
        options = chosen(
            {"partitions": 2, "microbatches": 4, "placement_strategy": "spread"},
            ModelParallel(microbatches=8, seed=7),
        )

    assert (2, 8, "spread", 7) == (
        options.pipeline_parallel_degree,
        options.microbatches,
        options.placement_strategy,
        options.seed,
    )
    assert [
        "Options of the job override those of smp.init: microbatches is 8, not 4."
    ] == caplog.messages


def test_nothing_is_noted_where_both_say_the_same(caplog):
    """Equal values, and values that the script left at their default."""
    with caplog.at_level(logging.WARNING):
        chosen({"partitions": 2, "microbatches": 4}, ModelParallel(microbatches=4, seed=7))

    assert [] == caplog.messages


def test_options_that_exclude_each_other_come_from_one_side():
    """memory_weight of the job takes the place of the script's optimize, and so on."""
    script = {"partitions": 2, "optimize": "speed", "active_microbatches": 3}
    weighed = chosen(script, ModelParallel(memory_weight=0.5))
    simple = chosen(script, ModelParallel(pipeline="simple"))

    assert (None, 0.5, 3) == (weighed.optimize, weighed.memory_weight, weighed.active_microbatches)
    assert ("speed", "simple", None) == (
        simple.optimize,
        simple.pipeline,
        simple.active_microbatches,
    )


def test_a_plan_of_the_job_decides_all_that_plans_decide():
    """Pipeline and balance of the script do not stand beside it."""
    options = chosen({"partitions": 2, "optimize": "speed"}, ModelParallel(plan="plan.json"))

    assert ModelParallel(plan="plan.json", pipeline_parallel_degree=2, microbatches=1) == options


def test_the_engine_is_the_jobs():
    """Ranks run on it already."""
    engine = DataParallel(lanes=4)
    script = ModelParallel(engine=DataParallel(lanes=2))

    assert DataParallel() == chosen(script, ModelParallel(seed=1)).engine
    assert engine == chosen(script, ModelParallel(engine=engine)).engine


def test_an_engine_for_ranks_that_run_already_is_refused():
    """Each option with where it belongs; fusion_bytes is the script's own matter."""
    late = ModelParallel(engine=DataParallel(lanes=4, processes_per_host=2, fusion_bytes=1 << 20))
    with pytest.raises(OptionErrors) as caught:
        chosen(late, None)

    assert [
        (("engine", "processes_per_host"), "too_late"),
        (("engine", "lanes"), "too_late"),
    ] == [(fault.about, fault.kind) for fault in caught.value.faults]
    assert (
        1 << 20
        == chosen(
            ModelParallel(engine=DataParallel(fusion_bytes=1 << 20)), None
        ).engine.fusion_bytes
    )


def test_the_horizon_is_the_jobs_with_its_offload():
    """A horizon of the script has no meaning for a job that sets offload, and the other way."""
    script = ModelParallel(offload_activations=True, activation_loading_horizon=2)
    job = ModelParallel(offload_activations=True)

    assert chosen(script, job).activation_loading_horizon is None
    assert 2 == chosen(script, ModelParallel()).activation_loading_horizon
    assert 2 == chosen(None, script).activation_loading_horizon


def test_offload_by_smps_keys():
    """In a dict of SMP v1, and in one of ours, the keys have the same names."""
    keys = {"offload_activations": True, "activation_loading_horizon": 3}
    expected = ModelParallel.from_smp({"partitions": 2, **keys})

    assert expected == read({"partitions": 2, **keys})
    assert (True, 3) == (expected.offload_activations, expected.activation_loading_horizon)
    assert ModelParallel(virtual_stages=2, **keys) == read({"virtual_stages": 2, **keys})
