# SPDX-License-Identifier: Apache-2.0
"""Directory tree and environment of an emulated host, as SageMaker prepares them.

The tree is the host's /opt/ml: a directory in the job's folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.planning.local_job import CONTAINER_ROOT, REGION, SUBMIT_DIRECTORY
from sagemaker_dist.runners.local.code_copy import Code, own_places
from sagemaker_dist.runners.local.job_folder import JobFolder

_FOLDERS: Final = ("input/config", "input/data", "model", "output/data", "code")
_FOREIGN: Final = (  # variables of a launcher around the driver, which would mislead this one
    "SM_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "TF_CONFIG",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostTree:
    """The /opt/ml of one emulated host."""

    root: Path

    @property
    def model(self) -> Path:
        """Directory that becomes model.tar.gz."""
        return self.root / "model"

    @property
    def output_data(self) -> Path:
        """Directory that becomes output.tar.gz."""
        return self.root / "output" / "data"

    @property
    def data(self) -> Path:
        """Directory of the channels."""
        return self.root / "input" / "data"

    def failure(self) -> str:
        """Return the launcher's failure message, or ""."""
        try:
            text = (self.root / "output" / "failure").read_text(errors="replace")
        except OSError:
            return ""
        return text.strip()

    def failure_fields(self) -> dict[str, Any]:
        """Return the data of the launcher in output/failure.json; empty if there are none."""
        try:
            found = json.loads((self.root / "output" / "failure.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> Path:
        """Directory in which the script runs."""
        return self.root / "code"

    def keep_code(self) -> None:
        """Remove everything but the code; links are removed, not followed."""
        for entry in list(self.root.iterdir()):
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink(missing_ok=True)
            elif entry != self.code:
                shutil.rmtree(entry, ignore_errors=True)

    def create(self, job: LocalJob, host: LocalHost, folder: JobFolder) -> None:
        """Create the directories, copy the code and write the configuration.

        Raises:
            SetupError: The code cannot be copied.
        """
        for part in _FOLDERS:
            (self.root / part).mkdir(parents=True)
        hyperparameters = dict(job.hyperparameters)
        code = code_of(job, folder)
        if code:
            code.place(self.code)  # the launcher uses it in place, without a copy
            inside = CONTAINER_ROOT / "code" if job.in_containers else self.code
            hyperparameters[SUBMIT_DIRECTORY] = json.dumps(str(inside))
        config = {
            "hyperparameters": hyperparameters,
            "resourceconfig": job.resource_config(host),
            "inputdataconfig": job.input_data_config(),
        }
        for name, document in config.items():
            (self.root / "input/config" / f"{name}.json").write_text(json.dumps(document))

    def make_mount_points(self, job: LocalJob, names: Iterable[str]) -> None:
        """Create Docker's mount points, because those that Docker creates belong to root."""
        (self.root / job.checkpoint_folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            place = self.data / name
            if "/" in name:  # a single file
                place.parent.mkdir(exist_ok=True)
                place.touch()
            else:
                place.mkdir(exist_ok=True)

    def link_checkpoints(self, job: LocalJob, checkpoints: Path) -> None:
        """Link the shared checkpoints into the tree, for hosts that see this machine's disk."""
        shared = self.root / job.checkpoint_folder
        shared.parent.mkdir(parents=True, exist_ok=True)
        shared.symlink_to(checkpoints, target_is_directory=True)


def code_of(job: LocalJob, folder: JobFolder) -> Code | None:
    """Return the code to copy to each host, or None if the launcher fetches it."""
    source = job.source
    if source is None and job.in_containers:  # containers see only their trees
        source = job.submitted()
    if source is None:
        return None
    return Code(
        folder=source.folder,
        only=source.only,
        dependencies=source.dependencies,
        own=own_places(folder.path, job.output, job.name),
    )


def host_environment(
    job: LocalJob, host: LocalHost, tree: HostTree, master_port: int, around: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one host: the driver's, then SageMaker's, then the user's
    variables.
    """
    kept = {name: value for name, value in around.items() if not _is_foreign(name)}
    own = {
        **sagemaker_environment(job, host),
        "AWS_REGION": kept.get("AWS_REGION", REGION),
        "SAGEMAKER_BASE_DIR": str(tree.root),
        "SM_CHECKPOINT_DIR": str((tree.root / job.checkpoint_folder).resolve()),  # no link
        "SMDIST_MASTER_PORT": str(master_port),
    }
    paths = [job.environment.get("PYTHONPATH"), kept.get("PYTHONPATH")]
    own_path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
    return {**kept, **own, **job.environment, **own_path}


def sagemaker_environment(job: LocalJob, host: LocalHost) -> dict[str, str]:
    """Return the variables that SageMaker sets in every container, and the checkpoint directory."""
    return {
        "AWS_REGION": REGION,
        "CURRENT_HOST": host.address,
        "SM_CHECKPOINT_DIR": str(CONTAINER_ROOT / job.checkpoint_folder),
        "TRAINING_JOB_ARN": job.arn,
        "TRAINING_JOB_NAME": job.name,
    }


def _is_foreign(name: str) -> bool:
    return any(name == mark or (mark.endswith("_") and name.startswith(mark)) for mark in _FOREIGN)
