# SPDX-License-Identifier: Apache-2.0
"""Checks of a ModelTrainer's job, which need only the facts about it."""

import pytest

from sagemaker_dist import DataParallel
from sagemaker_dist.contract import KEY
from sagemaker_dist.errors import dotted
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


def messages(**facts):
    return [str(fault) for fault in training_faults(Training(**facts))]


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
    assert [] == messages(**facts)


@pytest.mark.parametrize(
    ("facts", "path"),
    [
        (THEIRS | QUOTE, "hyperparameters.text"),
        (THEIRS | DOT, 'hyperparameters."a.b"'),
        (THEIRS | HYPHEN, "inputs.my-data"),
        (QUOTE, "hyperparameters.text"),
        (OURS | QUOTE | {"uses_launcher": False}, "hyperparameters.text"),
        (OURS | DOT | {"environment": {"SMDIST_TAKE_OVER": "off"}}, 'hyperparameters."a.b"'),
        (OURS | DOT | {"environment": {"SMDIST_INIT": "off"}}, 'hyperparameters."a.b"'),
        ({"inputs": (Input(name="a", content_type="x'y"),)}, "inputs.a.content_type"),
        (THEIRS | {"entry_script": "it's.py"}, "source_code.entry_script"),
        (THEIRS | {"inputs": (Input(name="code"),)}, "inputs.code"),
        (OURS | {"inputs": (Input(name="a b"),)}, 'inputs."a b"'),
        (OURS | {"has_source": False}, "source_code"),
        (THEIRS | {"entry_script": ""}, "source_code.entry_script"),
        (OURS | {"command": "x"}, "source_code.command"),
        (OURS | {"entry_script": "train.sh"}, "source_code.entry_script"),
        (THEIRS | {"launcher": "MPI"}, "distributed"),
        (OURS | {"num_groups": 2}, "compute.instance_groups"),
        (THEIRS | {"num_groups": 2}, "compute.instance_groups"),
        (OURS | {"instance_type": "ml.p4d.24xlrage"}, "instance_type"),
        (OURS | {"instance_type": "ml.trn1.2xlarge"}, "instance_type"),
        (OURS | {"instance_type": "local_process"}, "instance_type"),
        (OURS | {"image": AWS_IMAGE}, "training_image"),
        (OURS | {"instance_count": 0}, "instance_count"),
        (OURS | {"options": DataParallel(shard_weights=(1, 2, 3))}, "shard_weights"),
        (OURS | {"hyperparameters": {KEY: "x"}}, "hyperparameters.sagemaker_dist_config"),
        (OURS | {"hyperparameters": {"a b": "x"}}, 'hyperparameters."a b"'),
        (OURS | {"hyperparameters": {"a": "x\0"}}, "hyperparameters.a"),
        (OURS | HERE | {"deleted": ("input", "algo-1"), "root": "/x"}, "local_container_root"),
        (THEIRS | HERE | {"waits": False}, "wait"),
    ],
)
def test_what_goes_wrong_is_one_fault(facts, path):
    assert [path] == [dotted(fault.about) for fault in training_faults(Training(**facts))]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            THEIRS | QUOTE,
            "hyperparameters['text'] is \"it's\": ModelTrainer passes it to a shell in single"
            " quotes, and the text after a single quote would run as commands. Pass the text in a"
            " file, or train with DataParallelConfig() in an image of `sagemaker-dist image"
            " build`, which does not use that shell.",
        ),
        (
            THEIRS | DOT,
            "hyperparameters has the name 'a.b': ModelTrainer passes it to a shell as the name of"
            " a variable, which may have only letters, digits and '_'. Rename it, or train with"
            " DataParallelConfig() in an image of `sagemaker-dist image build`, which does not"
            " use that shell.",
        ),
        (
            OURS | {"has_source": False},
            "distributed is DataParallelConfig, and source_code is left out: the ranks need a"
            " script to run. Pass source_code=SourceCode(source_dir=..., entry_script='train.py').",
        ),
        (
            THEIRS | {"launcher": "MPI"},
            "distributed is MPI on 2 hosts: ModelTrainer calls mpirun with the number of ranks"
            " of one host, so only the first host gets ranks. Pass DataParallelConfig() or"
            " Torchrun().",
        ),
        (
            OURS | {"instance_type": "local_process"},
            "instance_type is 'local_process': ModelTrainer would send the job to SageMaker,"
            " which has no such type. Pass training_mode=Mode.LOCAL_CONTAINER as well.",
        ),
        (
            OURS | HERE | {"deleted": ("input", "algo-1"), "root": "/x"},
            "local_container_root is '/x': ModelTrainer deletes input, algo-1 in this directory"
            " when the job has ended. Pass an empty directory, such as tempfile.mkdtemp().",
        ),
    ],
)
def test_messages(facts, text):
    assert [text] == messages(**facts)


def test_everything_comes_at_once():
    facts = OURS | {"uses_launcher": False, "num_groups": 2, "command": "x"}
    facts |= {"hyperparameters": {"a.b": "it's"}, "inputs": (Input(name="c-d"),)}

    assert 5 == len(messages(**facts))


def test_sagemakers_limits_hold_on_sagemaker_alone():
    limits = {
        "HyperParameters": Limit(most=2),
        "HyperParameterValue": Limit(most=5),
    }
    facts = OURS | {"limits": limits, "hyperparameters": {"a": "123456", "b": "", "c": ""}}

    assert [("hyperparameters",), ("hyperparameters", "a")] == [
        fault.about for fault in training_faults(Training(**facts))
    ]
    assert [] == messages(**facts | HERE)
