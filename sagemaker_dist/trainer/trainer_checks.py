# SPDX-License-Identifier: Apache-2.0
"""Checks of a ModelTrainer's job before it starts.

SageMaker's SDK does not report some of these faults. The job then fails, or trains differently from
what was requested. The source is the code of SageMaker's Python SDK 3.27.0, read and tried on
2026-11-21.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS
from sagemaker_dist.contract import KEY, distribution_of
from sagemaker_dist.errors import KeyPath, OptionError
from sagemaker_dist.planning import Channel, Job, Terms, construction_faults, fit_faults
from sagemaker_dist.planning.service.hyperparameter_checks import hyperparameter_faults
from sagemaker_dist.planning.service.limits import short_repr
from sagemaker_dist.trainer.trainer_job import Training

_VARIABLE: Final = re.compile(
    r"[A-Za-z0-9_]+"
)  # rest of a variable's name after SM_HP_, SM_CHANNEL_
_RESERVED: Final = ("code", "sm_drivers")
_AWS: Final = "763104351884.dkr.ecr."  # the registry of AWS's Deep Learning Containers, 2026-11-21
_COUNT: Final = "HyperParameters"
_SHELL: Final = "ModelTrainer passes this text to a shell"
_NO_SHELL: Final = (
    "train with DataParallelConfig() in an image of `sagemaker-dist image build`, which does not"
    " use that shell"
)


def training_faults(training: Training) -> Iterator[OptionError]:
    """Yield the faults of a ModelTrainer and of its input data."""
    if training.launcher:
        yield from _code_faults(training)
        yield from _launcher_faults(training)
    if training.options is not None:
        yield from _plan_faults(training)
    if training.uses_shell:
        yield from _shell_faults(training)
    for name in (each.name for each in training.inputs if each.name in _RESERVED):
        yield OptionError(
            f"a channel is named {name!r}",
            "ModelTrainer sends its own files in a channel with this name",
            "Rename the channel",
            about=("inputs", name),
            kind="reserved",
        )
    if training.runs_here:
        yield from _local_mode_faults(training)


def job_of(training: Training) -> Job:
    """Return the facts about a ModelTrainer's job for the checks that jobs of estimators share."""
    return Job(
        kind="ModelTrainer",
        names_image=not training.uses_launcher,
        distribution=distribution_of(training.options),
        plan=training.plan,
        instance_type=None if _is_elsewhere(training) else training.instance_type,
        instance_count=training.instance_count,
        known_to_boto3=training.known_to_boto3,
        environment=training.environment,
        channels=tuple(Channel(name=each.name) for each in training.inputs),
    )


def _is_elsewhere(training: Training) -> bool:
    """Return whether `job_of` leaves out the instance type, so that it is not checked.

    The result is True if the job runs on this machine, or if the instance type is one for local
    jobs of estimators, such as "local_process".
    """
    return training.runs_here or training.instance_type in {LOCAL_PROCESS, *LOCAL}


def _code_faults(training: Training) -> Iterator[OptionError]:
    what = f"distributed is {training.launcher}"
    script = training.entry_script
    if not training.has_source:
        yield OptionError(
            f"{what}, and source_code is left out",
            "the ranks need a script to run",
            "Pass source_code=SourceCode(source_dir=..., entry_script='train.py')",
            about="source_code",
            kind="missing",
        )
        return
    if training.command:
        yield OptionError(
            f"{what}, and source_code has command={short_repr(training.command)}",
            "ModelTrainer runs the command once on every host and starts no ranks",
            "Pass entry_script instead of command, or leave distributed out",
            about=("source_code", "command"),
            kind="conflict",
        )
    elif script == "":
        yield OptionError(
            f"{what}, and source_code has no entry_script",
            "the ranks need a script to run",
            "Pass entry_script='train.py'",
            about=("source_code", "entry_script"),
            kind="missing",
        )
    if script and not script.endswith(".py"):
        yield OptionError(
            f"entry_script is {script!r}",
            "ranks run only Python scripts",
            "Pass the name of a .py file",
            about=("source_code", "entry_script"),
            kind="unsupported",
        )


def _launcher_faults(training: Training) -> Iterator[OptionError]:
    hosts = training.instance_count
    if training.launcher == "MPI" and type(hosts) is int and hosts > 1:
        yield OptionError(
            f"distributed is MPI on {hosts} hosts",
            "ModelTrainer calls mpirun with the number of ranks of one host, so only the first"
            " host gets ranks",
            "Pass DataParallelConfig() or Torchrun()",
            about="distributed",
            kind="unsupported",
        )
    if training.num_groups > 1:
        why = "the ranks of each group would train separately from those of the others"
        if training.options is None:
            why = "ModelTrainer starts one world of ranks over the hosts of all groups"
        yield OptionError(
            f"compute has {training.num_groups} instance groups",
            why,
            "Pass instance_type and instance_count, or one group",
            about=("compute", "instance_groups"),
            kind="conflict",
        )


def _plan_faults(training: Training) -> Iterator[OptionError]:
    if training.instance_type in {LOCAL_PROCESS, *LOCAL} and not training.runs_here:
        yield OptionError(
            f"instance_type is {training.instance_type!r}",
            "ModelTrainer would send the job to SageMaker, which has no such type",
            "Pass training_mode=Mode.LOCAL_CONTAINER as well",
            about="instance_type",
            kind="conflict",
        )
    if str(training.image).startswith(_AWS):
        yield OptionError(
            f"training_image is {training.image!r}",
            "it is an image of AWS, which does not have the sagemaker-dist launcher",
            "Pass an image of `sagemaker-dist image build`, or an image that is based on it",
            about="training_image",
            kind="unsupported",
        )
    job = job_of(training)
    found = (*construction_faults(job), *fit_faults(job))
    yield from {
        str(fault): fault for fault in found
    }.values()  # both checks may find the same fault
    limits = {} if training.runs_here else dict(training.limits)
    given, most = training.hyperparameters, limits.pop(_COUNT, None)  # the SDK adds none
    if most is not None and most.most is not None and len(given) > most.most:
        yield OptionError(
            f"hyperparameters has {len(given)} entries",
            f"SageMaker allows at most {most.most}",
            "Leave some out, or pass them in a file of an input channel",
            about="hyperparameters",
            kind="too_many",
        )
    if KEY in given:
        what = f"hyperparameters has the name {KEY!r}"
        why = "the options of distributed= are sent under this name"
        yield OptionError(what, why, "Leave it out", ("hyperparameters", KEY), "reserved")
    terms = Terms(limits=limits, hyperparameters=given, encodes_json=False, is_written=True)
    yield from hyperparameter_faults(terms, has_launcher=False)


def _shell_faults(training: Training) -> Iterator[OptionError]:
    for name, value in training.hyperparameters.items():
        if not _VARIABLE.fullmatch(name.replace("-", "_")):
            what = f"hyperparameters has the name {short_repr(name)}"
            yield _name_fault(what, ("hyperparameters", name))
        what = f"hyperparameters[{short_repr(name)}]"
        yield from _quote_faults(what, value, ("hyperparameters", name))
    for each in training.inputs:
        if not _VARIABLE.fullmatch(each.name):
            yield _name_fault(f"a channel is named {short_repr(each.name)}", ("inputs", each.name))
        what, about = f"content_type of channel {each.name!r}", ("inputs", each.name)
        yield from _quote_faults(what, each.content_type, (*about, "content_type"))
    about = "source_code", "entry_script"
    yield from _quote_faults("entry_script", training.entry_script, about)


def _name_fault(what: str, about: KeyPath) -> OptionError:
    return OptionError(
        what,
        f"{_SHELL} as the name of a variable, which may have only letters, digits and '_'",
        f"Rename it, or {_NO_SHELL}",
        about=about,
        kind="shell_name",
    )


def _quote_faults(what: str, value: str | None, about: KeyPath) -> Iterator[OptionError]:
    if value is not None and "'" in value:
        yield OptionError(
            f"{what} is {short_repr(value)}",
            f"{_SHELL} in single quotes. The text itself has a single quote, so the shell would run"
            " what follows as commands",
            f"Pass the text in a file, or {_NO_SHELL}",
            about=about,
            kind="shell_quote",
        )


def _local_mode_faults(training: Training) -> Iterator[OptionError]:
    if training.deleted:
        yield OptionError(
            f"local_container_root is {training.root!r}",
            f"ModelTrainer deletes {', '.join(training.deleted)} in this directory when the job"
            " has ended",
            "Pass an empty directory, such as tempfile.mkdtemp()",
            about="local_container_root",
            kind="not_empty",
        )
    if not training.waits:
        yield OptionError(
            "wait is False in Mode.LOCAL_CONTAINER",
            "without waiting, ModelTrainer deletes the input of the job while the job runs",
            "Pass wait=True",
            about="wait",
            kind="conflict",
        )
