# SPDX-License-Identifier: Apache-2.0
"""Checks of a ModelTrainer's job, which need only the facts about it."""

import pytest
from error_fields import fields_of

from sagemaker_dist import DataParallel
from sagemaker_dist.contract import KEY
from sagemaker_dist.planning import Limit
from sagemaker_dist.trainer.trainer_checks import training_faults
from sagemaker_dist.trainer.trainer_job import Input, Training

OURS = {
    "options": DataParallel(),
    "launcher": "DataParallelConfig",
    "instance_type": "ml.c5.xlarge",
    "instance_count": 2,
}
THEIRS = {"launcher": "Torchrun", "uses_launcher": False, "instance_count": 2}
HERE = {"runs_here": True, "instance_type": "local_cpu"}
AWS_IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-cpu-py312"
QUOTE = {"hyperparameters": {"text": "it's"}}
DOT = {"hyperparameters": {"a.b": "1"}}
HYPHEN = {"inputs": (Input(name="my-data"),)}


def faults(**facts):
    """Return the fields of the faults of a job."""
    return fields_of(training_faults(Training(**facts)))


@pytest.mark.parametrize(
    "facts",
    [
        OURS,
        THEIRS,
        {},
        OURS | HERE,
        OURS | QUOTE,
        OURS | DOT,
        OURS | HYPHEN,
        THEIRS | {"hyperparameters": {"batch-size": "8", "text": 'two "words"\n$x'}},
        THEIRS | {"inputs": (Input(name="my_data"), Input(name="9", content_type="text/csv"))},
        THEIRS | {"launcher": "MPI", "instance_count": 1},
        {"command": "bash run.sh", "entry_script": ""},
        THEIRS | {"image": AWS_IMAGE},
        {"entry_script": "run.sh"},
        {"entry_script": None, **OURS},
        {"has_source": False, "uses_launcher": False} | DOT,
        OURS | {"instance_type": "ml.next.xlarge", "known_to_boto3": True},
    ],
)
def test_what_works_is_let_through(facts):
    assert [] == faults(**facts)


@pytest.mark.parametrize(
    ("facts", "path", "kind"),
    [
        (THEIRS | QUOTE, "hyperparameters.text", "shell_quote"),
        (THEIRS | DOT, 'hyperparameters."a.b"', "shell_name"),
        (THEIRS | HYPHEN, "inputs.my-data", "shell_name"),
        (QUOTE, "hyperparameters.text", "shell_quote"),
        (OURS | QUOTE | {"uses_launcher": False}, "hyperparameters.text", "shell_quote"),
        (
            OURS | DOT | {"environment": {"SMDIST_TAKE_OVER": "off"}},
            'hyperparameters."a.b"',
            "shell_name",
        ),
        (
            OURS | DOT | {"environment": {"SMDIST_INIT": "off"}},
            'hyperparameters."a.b"',
            "shell_name",
        ),
        (
            {"inputs": (Input(name="a", content_type="x'y"),)},
            "inputs.a.content_type",
            "shell_quote",
        ),
        (THEIRS | {"entry_script": "it's.py"}, "source_code.entry_script", "shell_quote"),
        (THEIRS | {"inputs": (Input(name="code"),)}, "inputs.code", "reserved"),
        (OURS | {"inputs": (Input(name="a b"),)}, 'inputs."a b"', "option"),
        (OURS | {"has_source": False}, "source_code", "missing"),
        (THEIRS | {"entry_script": ""}, "source_code.entry_script", "missing"),
        (OURS | {"command": "x"}, "source_code.command", "conflict"),
        (OURS | {"entry_script": "train.sh"}, "source_code.entry_script", "unsupported"),
        (THEIRS | {"launcher": "MPI"}, "distributed", "unsupported"),
        (OURS | {"num_groups": 2}, "compute.instance_groups", "conflict"),
        (THEIRS | {"num_groups": 2}, "compute.instance_groups", "conflict"),
        (OURS | {"instance_type": "ml.p4d.24xlrage"}, "instance_type", "unknown"),
        (OURS | {"instance_type": "ml.trn1.2xlarge"}, "instance_type", "unsupported"),
        (OURS | {"instance_type": "local_process"}, "instance_type", "conflict"),
        (OURS | {"image": AWS_IMAGE}, "training_image", "unsupported"),
        (OURS | {"instance_count": 0}, "instance_count", "option"),
        (
            OURS | {"options": DataParallel(shard_weights=(1, 2, 3))},
            "shard_weights",
            "difference",
        ),
        (
            OURS | {"hyperparameters": {KEY: "x"}},
            "hyperparameters.sagemaker_dist_config",
            "reserved",
        ),
        (OURS | {"hyperparameters": {"a b": "x"}}, 'hyperparameters."a b"', "option"),
        (OURS | {"hyperparameters": {"a": "x\0"}}, "hyperparameters.a", "nul"),
        (
            OURS | HERE | {"deleted": ("input", "algo-1"), "root": "/x"},
            "local_container_root",
            "not_empty",
        ),
        (THEIRS | HERE | {"waits": False}, "wait", "conflict"),
    ],
)
def test_what_goes_wrong_is_one_fault(facts, path, kind):
    assert [(path, kind)] == faults(**facts)


def test_text_of_a_directory_that_will_be_emptied():
    """The text has what would be deleted."""
    facts = OURS | HERE | {"deleted": ("input", "algo-1"), "root": "/x"}
    (fault,) = training_faults(Training(**facts))

    assert str(fault) == (
        "local_container_root is '/x': ModelTrainer deletes input, algo-1 in this directory when"
        " the job has ended. Pass an empty directory, such as tempfile.mkdtemp()."
    )


def test_everything_comes_at_once():
    facts = OURS | {"uses_launcher": False, "num_groups": 2, "command": "x"}
    facts |= {"hyperparameters": {"a.b": "it's"}, "inputs": (Input(name="c-d"),)}

    assert 5 == len(faults(**facts))


def test_sagemakers_limits_hold_on_sagemaker_alone():
    limits = {
        "HyperParameters": Limit(most=2),
        "HyperParameterValue": Limit(most=5),
    }
    facts = OURS | {"limits": limits, "hyperparameters": {"a": "123456", "b": "", "c": ""}}

    assert [
        ("hyperparameters", "too_many"),
        ("hyperparameters.a", "too_long"),
    ] == faults(**facts)
    assert [] == faults(**facts | HERE)
