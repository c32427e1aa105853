# SPDX-License-Identifier: Apache-2.0
"""What the checks know of a ModelTrainer: gathered facts, so that the checks stay pure.

A value of None is one that is left out or that only a pipeline will know; no
check touches it.
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
    """A channel of data.

    Attributes:
        name: Its name.
        content_type: As given.
    """

    name: str
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a ModelTrainer was asked to do.

    Attributes:
        options: What our launcher is asked for, or None where it is not.
        plan: The plan of a model that is split, or None where nobody could look for one.
        launcher: The class of `distributed=`, such as "Torchrun", or "".
        image: The training_image.
        image_is_ours: It is called as ours are, or a pipeline will know.
        has_source: There is a source_code.
        entry_script: Of source_code; "" where it is left out.
        command: The same.
        runs_here: The job runs in containers of this machine.
        waits: `train` waits for the job.
        num_groups: Instance groups.
        known_to_boto3: boto3's service model knows the instance type.
        hyperparameters: Every value as ModelTrainer writes it.
        root: The local_container_root.
        doomed: What ModelTrainer would delete in it.
        limits: SageMaker's service model.
    """

    options: DataParallel | ModelParallel | None = None
    plan: PlanFile | None = None
    launcher: str = ""
    image: str | None = None
    image_is_ours: bool = True
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
    doomed: tuple[str, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def asks_a_shell(self) -> bool:
        """Whether names and values go through the shell of ModelTrainer's sm_train.sh."""
        is_ours = self.options is not None and self.image_is_ours
        takes_over = is_ours and not any(self.environment.get(name) for name in _OPT_OUT)
        return self.has_source and not takes_over
