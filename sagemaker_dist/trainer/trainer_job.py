# SPDX-License-Identifier: Apache-2.0
"""Facts about a ModelTrainer's job that the checks need.

The facts are collected first, so that the checks read neither disk nor network. None stands for a
value that is left out or is a pipeline variable; checks skip such values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagemaker_dist.contract import DataParallel, ModelParallel
from sagemaker_dist.planning import Limit
from sagemaker_dist.planning.job import PlanFile

_OPT_OUT = ("SMDIST_TAKE_OVER", "SMDIST_INIT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Input channel of a ModelTrainer's job.

    Attributes:
        name: Name of the channel.
        content_type: Content type that the user passed, or None.
    """

    name: str
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Facts about a ModelTrainer's job.

    Attributes:
        options: Options for the sagemaker-dist launcher; None if another launcher starts the job.
        plan: File of saved parallel degrees and batch sizes that `ModelParallelConfig(plan=...)`
            names; None without that option, or if the file cannot be looked up.
        launcher: Name of the class of `distributed=`, such as "Torchrun"; "" if not given.
        image: The training_image.
        uses_launcher: True if the image has the name of a sagemaker-dist image, or is a pipeline
            variable.
        has_source: True if source_code is given.
        entry_script: Script in source_code; "" if left out.
        command: Command in source_code; "" if left out.
        runs_here: True if the job runs in containers on this machine.
        waits: True if `train` waits for the end of the job.
        instance_type: Type of the training hosts.
        instance_count: Number of the training hosts.
        num_groups: Number of instance groups; 0 if the job has none.
        known_to_boto3: True if only boto3 knows the instance type, not the table of sagemaker-dist.
        hyperparameters: Text that ModelTrainer sends for each hyperparameter, by name.
        environment: Environment variables of the job; "" for pipeline variables.
        inputs: Input channels.
        root: Directory local_container_root of the ModelTrainer, in which local jobs run.
        deleted: Names of entries of `root` that ModelTrainer deletes when the job has ended.
        limits: Limits from boto3's service model, by the name of the limited type, such as
            "TagKey".
    """

    options: DataParallel | ModelParallel | None = None
    plan: PlanFile | None = None
    launcher: str = ""
    image: str | None = None
    uses_launcher: bool = True
    has_source: bool = True
    entry_script: str | None = "train.py"
    command: str | None = ""
    runs_here: bool = False
    waits: bool = True
    instance_type: Any = None
    instance_count: Any = None
    num_groups: int = 0
    known_to_boto3: bool = False
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    root: str = ""
    deleted: tuple[str, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def uses_shell(self) -> bool:
        """Return whether the job runs ModelTrainer's shell script sm_train.sh.

        The shell then evaluates names and values of hyperparameters and environment variables.
        """
        has_launcher = self.options is not None and self.uses_launcher
        takes_over = has_launcher and not any(self.environment.get(name) for name in _OPT_OUT)
        return self.has_source and not takes_over
