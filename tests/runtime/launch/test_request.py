# SPDX-License-Identifier: Apache-2.0
"""Ranks are requested by smdist's hyperparameter or SageMaker's flags; others are refused."""

import json
from dataclasses import replace

import pytest
from error_fields import fields_of

from sagemaker_dist.contract import KEY, DataParallel, ModelParallel, World, render
from sagemaker_dist.contract.sdk_flags import GROUPS_KEY as GROUPS
from sagemaker_dist.contract.sdk_flags import MPI_FLAG as MPI
from sagemaker_dist.contract.sdk_flags import MPI_OPTIONS_KEY as SMP_OPTIONS
from sagemaker_dist.contract.sdk_flags import MPI_PROCESSES_KEY as PROCESSES
from sagemaker_dist.contract.sdk_flags import OTHER_FLAGS
from sagemaker_dist.contract.sdk_flags import SMDDP_MPI_OPTIONS_KEY as MPI_OPTIONS
from sagemaker_dist.errors import LaunchError, OptionError, OptionErrors
from smdist.config import read_runtime_config
from smdist.launch.environment import sm_environment
from smdist.launch.launch_request import (
    COMPILER,
    REFUSED,
    SERVED,
    STRATEGIES,
    resolve_request,
)
from smdist.launch.machine import HostResources
from smdist.launch.smp_v1_request import PARAMETERS

HOSTS = {"gpu": ["algo-1", "algo-2"], "more": ["algo-3"], "cpu": ["algo-4"]}
TORCHRUN = "sagemaker_torch_distributed_enabled"


@pytest.fixture
def ask(tmp_path):
    """Write SageMaker's files for one host, and read what it must start."""

    def write_and_read(hyperparameters, host="algo-1", groups=None, **variables):
        folder = tmp_path / "input/config"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hyperparameters.json").write_text(json.dumps(hyperparameters))
        groups = groups or {}
        resources = {
            "current_host": host,
            "hosts": [each for hosts in groups.values() for each in hosts] or [host],
            "current_group_name": next((name for name in groups if host in groups[name]), ""),
            "instance_groups": [
                {"instance_group_name": name, "hosts": hosts} for name, hosts in groups.items()
            ],
        }
        (folder / "resourceconfig.json").write_text(json.dumps(resources))
        environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), **variables}
        return resolve_request(read_runtime_config(environ))

    return write_and_read


@pytest.mark.parametrize("options", [DataParallel(lanes=2), ModelParallel(microbatches=4)])
def test_a_variable_of_the_job_counts_where_the_option_is_left_out(ask, options):
    config = ask(
        {KEY: render(options)}, SMDIST_INTEGRITY="mac", SMDIST_ENCRYPT="1", SMDIST_LANES="2"
    )

    assert DataParallel(integrity="mac", encrypt=True, lanes=2) == config.options
    assert config.model is None or config.model.engine == config.options


@pytest.mark.parametrize(
    ("variables", "faults"),
    [
        ({"SMDIST_INTEGRITY": "foo", "SMDIST_ENCRYPT": "yes"}, ["INTEGRITY", "ENCRYPT"]),
        ({"SMDIST_INTEGRTY": "mac"}, ["INTEGRTY"]),
        ({"SMDIST_LANES": "3"}, ["LANES"]),
    ],
)
def test_a_variable_that_no_rank_would_take_is_refused_before_ranks_start(ask, variables, faults):
    with pytest.raises(OptionError) as caught:
        ask({KEY: render(DataParallel(lanes=2))}, **variables)

    found = getattr(caught.value, "faults", (caught.value,))
    assert [(f"SMDIST_{name}",) for name in faults] == [fault.about for fault in found]


@pytest.mark.parametrize("value", ["true", True, '"true"', "True", '"True"', "1"])
@pytest.mark.parametrize("flag", SERVED)
def test_flag_asks_for_ranks_in_every_encoding(ask, flag, value):
    """Ranks start as with DataParallel(); scripts see the flag as a framework parameter."""
    config = ask({flag: value})

    assert DataParallel() == config.options
    assert [flag] == list(config.framework_parameters)
    assert "" == config.document


@pytest.mark.parametrize("value", ["false", False, '"false"', "False", "null", None, "0", ""])
@pytest.mark.parametrize("flag", [*SERVED, *REFUSED, COMPILER])
def test_flag_that_is_off_asks_for_nothing(ask, flag, value):
    """It starts no ranks, and is no second launcher together with smdist's hyperparameter."""
    options = DataParallel(processes_per_host=3)

    assert ask({flag: value}).options is None
    assert options == ask({flag: value, KEY: render(options)}).options


@pytest.mark.parametrize("value", ["yes", "2", "[true]", '{"enabled": true}'])
@pytest.mark.parametrize("flag", [*SERVED, *REFUSED, COMPILER])
def test_flag_that_is_no_switch_is_refused(ask, flag, value):
    with pytest.raises(OptionError) as refused:
        ask({flag: value})

    assert ((flag,), "option") == (refused.value.about, refused.value.kind)


def test_flags_that_are_served_agree(ask):
    """SageMaker's SDK sends two for torch_distributed with smdistributed.dataparallel."""
    assert DataParallel() == ask(dict.fromkeys(SERVED, "true")).options


@pytest.mark.parametrize("value", ["true", True])
@pytest.mark.parametrize("flag", REFUSED)
def test_launcher_that_is_not_here_is_refused_with_its_hint(ask, flag, value):
    with pytest.raises(OptionError) as refused:
        ask({flag: value})

    assert [(flag, "unsupported")] == fields_of(refused.value)
    assert REFUSED[flag] == (refused.value.why, refused.value.hint)


@pytest.mark.parametrize("flag", [*SERVED, *REFUSED])
def test_our_document_is_the_only_launcher(ask, flag):
    """A flag that is on together with it is refused; both are named."""
    with pytest.raises(OptionError) as refused:
        ask({flag: "true", KEY: render(DataParallel())})

    assert ((flag,), "conflict") == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize("beside", [{}, {SERVED[2]: "true"}, {KEY: render(DataParallel())}])
def test_mpi_options_are_refused(ask, beside):
    """The SDK always sends the text; an empty one has no effect."""
    with pytest.raises(OptionError) as refused:
        ask({MPI_OPTIONS: '"-x A=1 -np 2"', **beside})

    assert [(MPI_OPTIONS, "unsupported")] == fields_of(refused.value)
    assert "1" == ask({MPI_OPTIONS: '"-x A=1"', **beside}).inherited["A"]
    assert (ask({MPI_OPTIONS: '""', **beside}).options is None) == (not beside)
    assert (ask({MPI_OPTIONS: "", **beside}).options is None) == (not beside)


@pytest.mark.parametrize(
    ("beside", "processes"),
    [({}, None), ({MPI: "true"}, 1), ({MPI: True, PROCESSES: "2", SMP_OPTIONS: '""'}, 2)],
)
@pytest.mark.parametrize("encode", [json.dumps, lambda given: json.dumps(json.dumps(given)), dict])
def test_awss_parameters_split_the_model(ask, beside, processes, encode):
    """As SageMaker's SDK sends them for SMP v1; mpi starts one rank per host by default."""
    given = {"partitions": 2, "microbatches": 4, "static_mode": True}
    asked = ask({PARAMETERS: encode(given), **beside})
    engine = DataParallel(processes_per_host=processes)
    expected = ModelParallel(
        pipeline_parallel_degree=2, microbatches=4, pipeline="interleaved", optimize="memory",
        engine=engine,
    )  # fmt: skip

    assert (expected, engine) == (asked.model, asked.options)
    assert asked.warnings[0].startswith("static_mode=True has no effect")


def test_our_document_splits_the_model(ask):
    model = ModelParallel(microbatches=4, engine=DataParallel(lanes=2))
    asked = ask({KEY: render(model)})

    assert (model, model.engine) == (asked.model, asked.options)
    assert ask({KEY: render(DataParallel())}).model is None


@pytest.mark.parametrize(
    ("given", "beside", "about", "kind"),
    [
        ({"partitions": 2}, {TORCHRUN: "true"}, (PARAMETERS,), "conflict"),
        ({"partitions": 2}, {KEY: render(DataParallel())}, (PARAMETERS,), "conflict"),
        (
            {"partitions": 2, "load_partition": True},
            {},
            (PARAMETERS, "load_partition"),
            "unsupported",
        ),
        ([2], {}, (PARAMETERS,), "type"),
        ("no JSON", {}, (PARAMETERS,), "type"),
        ({"partitions": 2}, {MPI: "true", SMP_OPTIONS: '"-np"'}, (SMP_OPTIONS,), "unsupported"),
        ({"partitions": 2}, {MPI: "true", PROCESSES: "2000"}, (PROCESSES,), "option"),
    ],
)
def test_awss_parameters_that_are_not_served_are_refused(ask, given, beside, about, kind):
    with pytest.raises(OptionError) as refused:
        ask({PARAMETERS: json.dumps(given), **beside})

    assert (about, kind) == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize("value", ["true", True])
@pytest.mark.parametrize("beside", [{}, {TORCHRUN: "true"}, {KEY: render(DataParallel())}])
def test_the_training_compiler_is_refused(ask, beside, value):
    """It starts no ranks, so it is refused whether or not ranks are requested."""
    with pytest.raises(OptionError) as refused:
        ask({COMPILER: value, **beside})

    assert [(COMPILER, "unsupported")] == fields_of(refused.value)


def test_groups_need_ranks_and_not_a_compiler(ask):
    with pytest.raises(OptionErrors) as refused:
        ask({COMPILER: "true", GROUPS: '["gpu"]'}, "algo-1", HOSTS)

    assert [(COMPILER, "unsupported"), (GROUPS, "missing")] == fields_of(refused.value)


def test_all_faults_are_reported_at_once(ask):
    asked = dict.fromkeys([*REFUSED, COMPILER], "true") | {
        PARAMETERS: '{"a": 1}',
        MPI_OPTIONS: "-x",
    }
    with pytest.raises(OptionErrors) as refused:
        ask(asked | {TORCHRUN: "perhaps", GROUPS: "gpu"})

    named = [fault.about[0] for fault in refused.value.faults]
    assert [TORCHRUN, *REFUSED, COMPILER, PARAMETERS, MPI_OPTIONS, GROUPS] == named


@pytest.mark.parametrize("value", ['["gpu"]', ["gpu"], '"[\\"gpu\\"]"'])
@pytest.mark.parametrize(("host", "has_ranks"), [("algo-1", True), ("algo-2", True),
                                                 ("algo-3", False), ("algo-4", False)])  # fmt: skip
def test_ranks_start_in_the_named_group_alone(ask, value, host, has_ranks):
    """Its hosts are the world; a host of another group starts no ranks."""
    config = ask({TORCHRUN: "true", GROUPS: value}, host, HOSTS)

    assert (DataParallel() if has_ranks else None) == config.options
    assert ("gpu",) == config.distribution_groups
    assert tuple(next(hosts for hosts in HOSTS.values() if host in hosts)) == config.resources.hosts


def test_our_document_may_name_groups_too(ask):
    asked = {KEY: render(DataParallel()), GROUPS: '["gpu","more"]'}

    found = {host: ask(asked, host, HOSTS).options for host in ("algo-2", "algo-3", "algo-4")}

    assert {"algo-2": DataParallel(), "algo-3": DataParallel(), "algo-4": None} == found


@pytest.mark.parametrize("groups", [None, "[]", "", "null"])
def test_without_named_groups_each_is_a_world_of_its_own(ask, groups):
    asked = {TORCHRUN: "true"} | ({} if groups is None else {GROUPS: groups})

    for host in ("algo-1", "algo-4"):
        assert DataParallel() == ask(asked, host, HOSTS).options


def test_a_single_group_is_the_whole_job(ask):
    """SageMaker may call the current group by another name then."""
    config = ask({TORCHRUN: "true", GROUPS: '["gpu"]'}, "algo-9", {"gpu": []})

    assert "" == config.resources.group
    assert DataParallel() == config.options


@pytest.mark.parametrize("host", ["algo-1", "algo-4"])
def test_unknown_group_is_named_with_those_there_are(ask, host):
    with pytest.raises(LaunchError) as refused:
        ask({TORCHRUN: "true", GROUPS: '["cpu", "gpus", "x"]'}, host, HOSTS)

    assert ((GROUPS,), "unknown") == (refused.value.about, refused.value.kind)
    assert (
        f"the hyperparameter {GROUPS} names 'gpus', 'x': the instance groups in resourceconfig.json"
        " are 'gpu', 'more', 'cpu'. Did you mean 'gpu'?"
    ) == str(refused.value)


def test_group_in_a_job_without_groups_is_named(ask):
    with pytest.raises(LaunchError) as refused:
        ask({TORCHRUN: "true", GROUPS: '["gpu"]'})

    assert ((GROUPS,), "missing") == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize("value", ["gpu", '"gpu"', "{}", "[1]", "7", "true"])
def test_groups_that_are_no_list_of_names_are_refused(ask, value):
    with pytest.raises(OptionError) as refused:
        ask({TORCHRUN: "true", GROUPS: value}, "algo-1", HOSTS)

    assert ((GROUPS,), "option") == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize("beside", [{}, {TORCHRUN: "false"}])
def test_groups_without_ranks_are_refused(ask, beside):
    """SageMaker's SDK refuses them, too."""
    with pytest.raises(OptionError) as refused:
        ask({GROUPS: '["gpu"]', **beside}, "algo-1", HOSTS)

    assert ((GROUPS,), "missing") == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize(
    ("asked", "host", "groups", "said"),
    [
        ({TORCHRUN: "true", GROUPS: '["gpu"]'}, "algo-1", HOSTS, ["gpu"]),
        ({TORCHRUN: "true", GROUPS: '["gpu"]'}, "algo-4", HOSTS, ["gpu"]),
        ({TORCHRUN: "true"}, "algo-4", HOSTS, ["cpu"]),
        ({}, "algo-4", HOSTS, []),
        ({TORCHRUN: "true"}, "algo-1", None, []),
    ],
)
def test_scripts_are_told_which_groups_have_ranks(ask, asked, host, groups, said):
    """Also on a host without ranks, and in SM_TRAINING_ENV."""
    config = replace(ask(asked, host, groups), inherited={})
    world = World(hosts=config.resources.hosts, processes_per_host=1)
    variables = sm_environment(config, HostResources(), world)

    assert said == json.loads(variables["SM_DISTRIBUTION_INSTANCE_GROUPS"])
    assert said == json.loads(variables["SM_TRAINING_ENV"])["distribution_instance_groups"]
    assert list(groups or {}) == json.loads(variables["SM_INSTANCE_GROUPS"])
    assert set(asked) == set(json.loads(variables["SM_FRAMEWORK_PARAMS"]))


@pytest.mark.parametrize("flag", STRATEGIES)
def test_a_strategy_of_tensorflow_has_one_process_per_host(ask, flag):
    asked = ask({flag: "true"})

    assert DataParallel(processes_per_host=1) == asked.options
    assert ("tensorflow", flag) == (asked.framework, f"sagemaker_{asked.strategy}_enabled")


def test_a_host_outside_the_named_group_has_no_part_in_a_strategy(ask):
    asked = ask({STRATEGIES[1]: "true", GROUPS: '["gpu"]'}, "algo-4", HOSTS)

    assert (None, None) == (asked.options, asked.strategy)


@pytest.mark.parametrize(
    ("asked", "about", "kind"),
    [
        (dict.fromkeys(STRATEGIES, "true"), STRATEGIES[0], "conflict"),
        ({STRATEGIES[0]: "true", TORCHRUN: "true"}, TORCHRUN, "conflict"),
        ({STRATEGIES[0]: "true", KEY: render(DataParallel())}, STRATEGIES[0], "conflict"),
    ],
)
def test_a_strategy_is_requested_alone(ask, asked, about, kind):
    with pytest.raises(OptionError) as refused:
        ask(asked)

    assert ((about,), kind) == (refused.value.about, refused.value.kind)


def test_options_without_meaning_for_keras_are_refused(ask):
    """Stages of a Keras model start; shards of its state are refused before any rank starts."""
    asked = ask({KEY: render(ModelParallel(), "tensorflow")})
    with pytest.raises(OptionError) as refused:
        ask({KEY: render(ModelParallel(sharding="full"), "tensorflow")})

    assert "tensorflow" == asked.framework
    assert ((KEY, "sharding"), "unsupported") == (refused.value.about, refused.value.kind)


@pytest.mark.parametrize(
    ("asked", "framework"),
    [
        ({KEY: render(DataParallel())}, None),
        ({KEY: render(DataParallel(), "tensorflow")}, "tensorflow"),
        ({TORCHRUN: "true"}, "torch"),
        ({SERVED[2]: "true"}, None),
    ],
)
def test_the_request_says_what_ranks_train_with(ask, asked, framework):
    """With None the launcher detects what is installed."""
    assert framework == ask(asked).framework


def test_what_is_refused_here_is_refused_before_the_job_starts():
    assert {*REFUSED, PARAMETERS, MPI} == set(OTHER_FLAGS)
