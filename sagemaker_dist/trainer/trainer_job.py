# SPDX-License-Identifier: Apache-2.0
"""Facts about a ModelTrainer for the checks, gathered before so that the checks stay pure.

None means left out, or a pipeline variable; checks skip it.
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
    """An input channel.

    Attributes:
        name: Name of the channel.
        content_type: Content type that the user passed, or None.
    """

    name: str
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Facts about a ModelTrainer.

    Attributes:
        options: Options for the sagemaker-dist launcher, or None for other launchers.
        plan: Saved plan of a split model, or None if it cannot be read.
        launcher: Class name of `distributed=`, such as "Torchrun", or "".
        image: The training_image.
        uses_launcher: Whether it has the name of a sagemaker-dist image, or is a pipeline variable.
        has_source: Whether there is a source_code.
        entry_script: Script in source_code; "" if left out.
        command: Command in source_code; "" if left out.
        runs_here: Whether the job runs in containers of this machine.
        waits: Whether `train` waits for the job.
        num_groups: Number of instance groups.
        known_to_boto3: Whether boto3's service model has the instance type.
        hyperparameters: Hyperparameters as ModelTrainer writes them.
        root: The local_container_root.
        doomed: Directories in it that ModelTrainer would delete.
        limits: Limits of SageMaker's service model.
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
    doomed: tuple[str, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def uses_shell(self) -> bool:
        """Return whether names and values pass through the shell of ModelTrainer's sm_train.sh."""
        has_launcher = self.options is not None and self.uses_launcher
        takes_over = has_launcher and not any(self.environment.get(name) for name in _OPT_OUT)
        return self.has_source and not takes_over
