# SPDX-License-Identifier: Apache-2.0
"""What would go wrong with a ModelTrainer's job, from facts alone."""

import pytest

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


def said(**facts):
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
    assert [] == said(**facts)


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (THEIRS | QUOTE, "hyperparameters['text'] is \"it's\": ModelTrainer passes it to a shell"),
        (THEIRS | DOT, "hyperparameters has the name 'a.b': ModelTrainer passes it to a shell"),
        (THEIRS | HYPHEN, "a channel is named 'my-data': ModelTrainer passes it to a shell"),
        (QUOTE, "hyperparameters['text'] is \"it's\": "),
        (OURS | QUOTE | {"uses_launcher": False}, "hyperparameters['text'] is \"it's\": "),
        (OURS | DOT | {"environment": {"SMDIST_TAKE_OVER": "off"}}, "hyperparameters has the name"),
        (OURS | DOT | {"environment": {"SMDIST_INIT": "off"}}, "hyperparameters has the name 'a.b"),
        ({"inputs": (Input(name="a", content_type="x'y"),)}, "content_type of channel 'a' is \"x'"),
        (THEIRS | {"entry_script": "it's.py"}, 'entry_script is "it\'s.py": '),
        (THEIRS | {"inputs": (Input(name="code"),)}, "a channel is named 'code': ModelTrainer"),
        (OURS | {"inputs": (Input(name="a b"),)}, "a channel is named 'a b': a name is 1 to 64"),
        (OURS | {"has_source": False}, "distributed is DataParallelConfig, and there is no source"),
        (THEIRS | {"entry_script": ""}, "distributed is Torchrun, and source_code has no entry_sc"),
        (
            OURS | {"command": "x"},
            "distributed is DataParallelConfig, and source_code has command=",
        ),
        (OURS | {"entry_script": "train.sh"}, "entry_script is 'train.sh': ranks run only"),
        (THEIRS | {"launcher": "MPI"}, "distributed is MPI on 2 hosts: ModelTrainer calls mpirun"),
        (
            OURS | {"num_groups": 2},
            ("compute has 2 instance groups: each group would train on its own"),
        ),
        (
            THEIRS | {"num_groups": 2},
            "compute has 2 instance groups: ModelTrainer starts one world",
        ),
        (OURS | {"instance_type": "ml.p4d.24xlrage"}, "instance_type is 'ml.p4d.24xlrage': Sage"),
        (OURS | {"instance_type": "ml.trn1.2xlarge"}, "instance_type is 'ml.trn1.2xlarge': it has"),
        (OURS | {"instance_type": "local_process"}, "instance_type is 'local_process': ModelTrain"),
        (OURS | {"image": AWS_IMAGE}, f"training_image is {AWS_IMAGE!r}: it is AWS's"),
        (OURS | {"instance_count": 0}, "instance_count is 0: a job has at least one host"),
        (
            OURS | {"options": DataParallel(shard_weights=(1, 2, 3))},
            "shard_weights is of length 3: the number of hosts is 2",
        ),
        (OURS | {"hyperparameters": {KEY: "x"}}, f"hyperparameters has the name {KEY!r}: distr"),
        (OURS | {"hyperparameters": {"a b": "x"}}, "hyperparameters has the name 'a b': the scri"),
        (OURS | {"hyperparameters": {"a": "x\0"}}, "hyperparameters['a'] is 'x\\x00': a command"),
        (
            OURS | HERE | {"deleted": ("input", "algo-1"), "root": "/x"},
            "local_container_root is '/x'",
        ),
        (THEIRS | HERE | {"waits": False}, "wait is False in Mode.LOCAL_CONTAINER: ModelTrainer"),
    ],
)
def test_what_goes_wrong_is_named(facts, fault):
    [found] = said(**facts)

    assert found.startswith(fault)


def test_everything_comes_at_once():
    facts = OURS | {"uses_launcher": False, "num_groups": 2, "command": "x"}
    facts |= {"hyperparameters": {"a.b": "it's"}, "inputs": (Input(name="c-d"),)}

    assert 5 == len(said(**facts))


def test_sagemakers_limits_hold_on_sagemaker_alone():
    limits = {
        "HyperParameters": Limit(most=2),
        "HyperParameterValue": Limit(most=5),
    }
    facts = OURS | {"limits": limits, "hyperparameters": {"a": "123456", "b": "", "c": ""}}

    assert [
        "hyperparameters has 3 entries: SageMaker takes at most 2. Leave some out, or pass a file"
        " of them as a channel.",
        "hyperparameters['a'] has 6 characters: SageMaker takes at most 5. Pass it in a file of"
        " source_dir or in a channel.",
    ] == said(**facts)
    assert [] == said(**facts | HERE)
