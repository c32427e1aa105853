# SPDX-License-Identifier: Apache-2.0
"""A model that is split is checked against ranks, batch and plan before a job starts."""

import json
import warnings

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist import (
    DataParallel,
    ModelParallel,
    PyTorch,
    SMPv1,
    TrainingJob,
)
from sagemaker_dist.contract import (
    KEY,
    Distribution,
    claim_for_launcher,
    parse,
    read_distribution,
)
from sagemaker_dist.planning import Job, construction_faults, construction_warnings
from sagemaker_dist.planning.split_checks import describe_split, ranks_per_host

P4D, C5 = "ml.p4d.24xlarge", "ml.c5.xlarge"
PLAN = {
    "version": 1,
    "pipeline_parallel_degree": 2,
    "data_parallel_degree": 2,
    "batch_size": 32,
    "num_microbatches": 4,
}
SPLIT = {**PLAN, "data_parallel_degree": 1, "tensor_parallel_degree": 2}


def job(option, hosts=2, kind=P4D, **facts):
    asked = claim_for_launcher(read_distribution(option))
    return Job(distribution=asked, instance_type=kind, instance_count=hosts, **facts)


def faults(*args, **facts):
    return fields_of(construction_faults(job(*args, **facts)))


@pytest.mark.parametrize(
    ("option", "hosts", "kind"),
    [
        (ModelParallel(pipeline_parallel_degree=4), 2, P4D),
        (ModelParallel(pipeline_parallel_degree=4), 4, C5),
        (ModelParallel(pipeline_parallel_degree=4, engine={"processes_per_host": 2}), 2, C5),
        (ModelParallel(pipeline_parallel_degree=4), 3, "local_process"),  # its GPUs are unknown
        (ModelParallel(), 3, C5),
        (ModelParallel(pipeline_parallel_degree=4), None, P4D),
        (SMPv1(pipeline_parallel_degree=4, processes_per_host=2), 2, P4D),
    ],
)
def test_what_fits_is_no_fault(option, hosts, kind):
    assert [] == faults(option, hosts, kind)


@pytest.mark.parametrize(
    ("option", "hosts", "kind", "about"),
    [
        (ModelParallel(pipeline_parallel_degree=4), 3, C5, "pipeline_parallel_degree"),
        (
            ModelParallel(pipeline_parallel_degree=4, engine={"processes_per_host": 2}),
            3,
            "local_process",
            "pipeline_parallel_degree",
        ),
        (
            SMPv1(pipeline_parallel_degree=4, processes_per_host=3),
            2,
            P4D,
            "pipeline_parallel_degree",
        ),
        (
            ModelParallel(pipeline_parallel_degree=4, global_batch_size=62),
            2,
            P4D,
            "global_batch_size",
        ),
    ],
)
def test_what_does_not_divide_is_refused(option, hosts, kind, about):
    assert [(about, "indivisible")] == faults(option, hosts, kind)


def test_text_of_ranks_that_do_not_divide():
    """The text has both numbers, and the nearest ones that fit."""
    option = ModelParallel(pipeline_parallel_degree=4, engine={"processes_per_host": 2})
    (fault,) = construction_faults(job(option, 3, "local_process"))

    assert str(fault) == (
        "a world of 6 (3 hosts x 2 processes) has pipeline_parallel_degree=4: 4 ranks hold a whole"
        " model, so the number of ranks (6) must be a multiple of 4. Use 2 or 4 hosts, or"
        " pipeline_parallel_degree=3 or 6."
    )


def test_all_faults_of_awss_request_come_at_once():
    """Also where mpi is wrong."""
    wrong = {"contiguous": False, "load_partition": True}
    parameters = {"pipeline_parallel_degree": 2, "ddp": True, **wrong}
    section = {"modelparallel": {"enabled": True, "parameters": parameters}}
    mpi = {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-v --mca a b"}
    found = faults({"smdistributed": section, "mpi": mpi})

    place = "distribution.smdistributed.modelparallel.parameters"

    assert [
        (f"{place}.contiguous", "unsupported"),
        (f"{place}.load_partition", "unsupported"),
        ("distribution.mpi.custom_mpi_options", "unsupported"),
    ] == found


def test_what_has_no_effect_is_warned_of():
    option = SMPv1(pipeline_parallel_degree=2, static_mode=True, processes_per_host=2)

    assert any(
        "static_mode=True has no effect" in each for each in construction_warnings(job(option))
    )


def test_the_script_of_a_split_starts_its_own_backends():
    """On GPUs gradients travel by NCCL, and what stages send does not."""
    (said,) = construction_warnings(job(ModelParallel(pipeline_parallel_degree=2)))

    assert "Use smp.init() in the script" in said
    assert said.endswith("Activations between stages are sent through the memory of the hosts.")
    assert [] == list(construction_warnings(job(ModelParallel(pipeline_parallel_degree=2), 2, C5)))


@pytest.mark.parametrize(
    ("option", "world", "rows"),
    [
        (ModelParallel(), 8, {"split": "number of stages chosen by the planner"}),
        (
            ModelParallel(pipeline_parallel_degree=4, microbatches=4, global_batch_size=64),
            8,
            {
                "split": "4 stages x 2 replicas = 8 ranks",
                "batch": "64 = 2 replicas x 32, each in 4 microbatches of 8",
                "steps": "1 per 64 samples: 10 for 640",
            },
        ),
        (ModelParallel(pipeline_parallel_degree=4), None, {"split": "4 stages"}),
        (
            ModelParallel(pipeline_parallel_degree=1, global_batch_size=8),
            1,
            {
                "split": "1 stage x 1 replica = 1 rank",
                "batch": "8 = 1 replica x 8",
                "steps": "1 per 8 samples: 10 for 80",
            },
        ),
    ],
)
def test_people_read_how_ranks_and_batch_are_shared_out(option, world, rows):
    assert rows == describe_split(option, world)


def test_ranks_of_a_host_are_counted_as_the_launcher_counts():
    assert [8, 1, None, 3] == [
        ranks_per_host(Distribution(engine=options), kind)
        for options, kind in [
            (DataParallel(), P4D),
            (DataParallel(), C5),
            (DataParallel(), "local_process"),
            (DataParallel(processes_per_host=3), "local_process"),
        ]
    ]


@pytest.fixture
def start(script, tmp_path):
    """Makes a job of two hosts with two ranks each whose model is split by plan.json."""

    def make(kind, text=None, **options):
        source = script()
        if text is not None:
            (tmp_path / "src/plan.json").write_text(text)
        engine = DataParallel(processes_per_host=2)
        model = {"plan": "plan.json", "engine": engine, **options}
        settings = {
            "entry_point": "train.py",
            "source_dir": source,
            "instance_type": "local_process",
            "instance_count": 2,
            "distribution": ModelParallel(**model),
        }
        kind(**settings).validate()

    return make


@pytest.mark.parametrize("kind", [PyTorch, TrainingJob])
def test_a_plan_below_the_source_is_found(start, kind):
    """And agrees with what was asked beside it; ranks that split layers count as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(kind, json.dumps(SPLIT))
        start(
            kind, json.dumps(PLAN), pipeline_parallel_degree=2, microbatches=4, global_batch_size=64
        )


@pytest.mark.parametrize("kind", [PyTorch, TrainingJob])
@pytest.mark.parametrize(
    ("plan", "options", "about", "fault"),
    [
        (None, {}, "plan", "missing_file"),
        ("{", {}, "plan", "unreadable_file"),
        ("[]", {}, "plan", "corrupt"),
        ({**PLAN, "batch_size": "2"}, {}, "plan", "corrupt"),
        ({**PLAN, "tensor_parallel_degree": -1}, {}, "plan", "corrupt"),
        ({**PLAN, "version": 3}, {}, "plan", "version"),
        (PLAN, {"plan": "/etc/passwd"}, "plan", "outside"),
        (PLAN, {"plan": "../src/plan.json"}, "plan", "outside"),
        ({**PLAN, "data_parallel_degree": 4}, {}, "plan", "difference"),
        ({**PLAN, "tensor_parallel_degree": 2}, {}, "plan", "difference"),
        (SPLIT, {"tensor_parallel_degree": 4}, "tensor_parallel_degree", "conflict"),
        (PLAN, {"microbatches": 8}, "microbatches", "conflict"),
        (PLAN, {"pipeline_parallel_degree": 4}, "pipeline_parallel_degree", "conflict"),
        (PLAN, {"global_batch_size": 32}, "global_batch_size", "conflict"),
    ],
)
def test_a_plan_that_does_not_fit_the_job_is_refused(start, kind, plan, options, about, fault):
    text = plan if plan is None or isinstance(plan, str) else json.dumps(plan)

    assert [(about, fault)] == fields_raised(lambda: start(kind, text, **options))[:1]


@pytest.mark.parametrize("has_plan", [True, False])
def test_without_source_dir_a_plan_is_a_dependency(script, tmp_path, has_plan):
    """Only the script and its dependencies travel."""
    source = script()
    (tmp_path / "src/plan.json").write_text(json.dumps(PLAN))
    settings = {
        "entry_point": f"{source}/train.py",
        "instance_type": "local_process",
        "instance_count": 4,
        "distribution": ModelParallel(plan="plan.json", engine={"processes_per_host": 1}),
        "dependencies": [f"{source}/plan.json"] if has_plan else [],
    }
    if has_plan:
        TrainingJob(**settings)
    else:
        assert [("plan", "missing_file")] == fields_raised(lambda: TrainingJob(**settings))


@pytest.mark.parametrize("spelling", ["ours", "SMPv1", "file"])
def test_a_job_by_boto3_asks_for_the_same_in_every_spelling(script, tmp_path, spelling):
    """One document: our options, AWS's typed ones, and AWS's dict with parameters in a file."""
    parameters = {"pipeline_parallel_degree": 2, "microbatches": 4}
    (tmp_path / "smp.json").write_text(json.dumps(parameters))
    section = {"enabled": True, "parameters": str(tmp_path / "smp.json")}
    mpi = {"mpi": {"enabled": True, "processes_per_host": 2}}
    given = {
        "ours": ModelParallel.from_smp(parameters, engine=DataParallel(processes_per_host=2)),
        "SMPv1": SMPv1(processes_per_host=2, **parameters),
        "file": {"smdistributed": {"modelparallel": section}, **mpi},
    }
    job = TrainingJob(
        entry_point="train.py",
        source_dir=script(),
        instance_type="local_process",
        distribution=given[spelling],
    )

    assert given["ours"] == parse(job.request()["HyperParameters"][KEY])
