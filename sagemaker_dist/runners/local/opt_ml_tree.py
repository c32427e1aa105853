# SPDX-License-Identifier: Apache-2.0
"""Files and environment variables of an emulated host, and the failure that it reports.

The files are in a directory of the job's folder. This directory is the host's /opt/ml.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract.job_secret import FILE, write_private
from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.planning.local_job import CONTAINER_ROOT, REGION, SUBMIT_DIRECTORY
from sagemaker_dist.runners.local.code_copy import Code, own_places
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.tree_reader import open_directory, read_start, remove_tree

MAX_CHARACTERS: Final = 1024  # FailureReason of DescribeTrainingJob
FAILURE_FIELDS: Final = frozenset(  # fields of output/failure.json; docs/debugging.md explains them
    {
        *("host", "rank", "exit_code", "is_secondary", "frame"),
        *("kind", "exception", "about", "culprit", "operation", "late_ranks"),
        *("what", "why", "hint", "faults"),
        *("restarts", "not_restarted"),
    }
)
MODEL: Final = "model"  # SM_MODEL_DIR; its files become model.tar.gz
RESTART_FIELDS: Final = frozenset(  # fields of an entry of restarts.json; see docs/restarts.md
    {
        *("attempt", "host", "rank", "kind", "exception", "exit_code", "frame"),
        *("text", "at_seconds", "progress"),
    }
)
RESTARTS: Final = "output/data/restarts.json"  # written by the launcher of the first host
OUTPUT_DATA: Final = "output/data"  # SM_OUTPUT_DATA_DIR; its files become output.tar.gz
_FOLDERS: Final = ("input/config", "input/data", MODEL, OUTPUT_DATA, "code")
_MAX_FAILURE_BYTES: Final = 1 << 16
_MAX_RESTARTS_BYTES: Final = 1 << 20
_FOREIGN: Final = (  # variables of a launcher that started the driver; they must not reach a host
    "SM_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "TF_CONFIG",
    "SMDIST_SECRET", "SMDIST_SECRET_FILE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of one host.

    Attributes:
        text: Text that the launcher wrote to output/failure, or "".
        ending: Sentence on how the host ended, used if `text` is empty.
        was_stopped: Whether the supervisor stopped the host before it ended. Without a `text`, such
            an end does not count as a failure.
        fields: Fields that the launcher wrote to output/failure.json.
    """

    text: str = ""
    ending: str = ""
    was_stopped: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_secondary(self) -> bool:
        """Return whether the rank failed only because another rank had failed before."""
        return bool(self.fields.get("is_secondary"))

    @property
    def names_left(self) -> bool:
        """Return whether the failure is due to a rank that left without an error."""
        return self.is_secondary and self.fields.get("kind") == "left"

    @property
    def reason(self) -> str:
        """Return the text for FailureReason, at most 1,024 characters."""
        return (self.text or self.ending)[:MAX_CHARACTERS]


def root_cause(failures: Sequence[Failure]) -> Failure:
    """Return the root cause among the failures of a job's hosts, in the order of their reports.

    When one rank fails, ranks of other hosts fail because of that, and their hosts often report
    first. The root cause is the first reported failure that no other rank caused, else the first
    one that names a rank which left without an error.
    """
    candidates = [failure for failure in failures if failure.text or not failure.was_stopped]
    ordered = sorted(
        candidates, key=lambda each: (each.is_secondary, not each.names_left, each.was_stopped)
    )
    return ordered[0] if ordered else Failure(text="A host failed.")


@dataclass(frozen=True, slots=True)
class HostTree:
    """Directory that is the /opt/ml of one emulated host."""

    root: Path

    @property
    def data(self) -> Path:
        """Directory with the data of the channels, one entry each."""
        return self.root / "input" / "data"

    def failure(self) -> str:
        """Return the text that the launcher wrote to output/failure; "" if it wrote none.

        At most 64 KiB are read. A link or a FIFO in place of the file counts as no text.
        """
        text = read_start(self.root, "output/failure", _MAX_FAILURE_BYTES)
        return text.decode(errors="replace").strip()

    def failure_fields(self) -> dict[str, Any]:
        """Return the fields that the launcher wrote to output/failure.json; an empty dict if none.

        Fields with other names than FAILURE_FIELDS are left out. A link, a FIFO, and a file longer
        than 64 KiB count as no fields.
        """
        return parse_failure_fields(
            read_start(self.root, "output/failure.json", _MAX_FAILURE_BYTES)
        )

    def loss(self) -> str:
        """Return the text of output/lost; "" if there is none.

        The launcher of a host that an elastic job has lost writes it, if the job has succeeded.
        """
        return read_start(self.root, "output/lost", _MAX_FAILURE_BYTES).decode(errors="replace")

    @property
    def code(self) -> Path:
        """Directory in which the script runs."""
        return self.root / "code"

    def keep_code(self) -> None:
        """Remove everything from this directory but the folder with the code.

        Links are removed, but not the files that they point to.
        """
        for entry in list(self.root.iterdir()):
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink(missing_ok=True)
            elif entry != self.code:
                remove_tree(entry)

    def create(self, job: LocalJob, host: LocalHost, folder: JobFolder) -> None:
        """Create the host's directories, copy the code, and write the files of input/config.

        The job's secret is one of these files, which the launcher removes.

        Raises:
            SetupError: The code cannot be copied.
        """
        for part in _FOLDERS:
            (self.root / part).mkdir(parents=True)
        hyperparameters = dict(job.hyperparameters)
        code = code_of(job, folder)
        if code:
            code.place(self.code)  # the launcher runs it there, without a copy
            inside = CONTAINER_ROOT / "code" if job.in_containers else self.code
            hyperparameters[SUBMIT_DIRECTORY] = json.dumps(str(inside))
        config = {
            "hyperparameters": hyperparameters,
            "resourceconfig": job.resource_config(host),
            "inputdataconfig": job.input_data_config(),
        }
        for name, document in config.items():
            (self.root / "input/config" / f"{name}.json").write_text(json.dumps(document))
        write_private(self.root / "input/config" / FILE, folder.secret())

    def renew(self, folder: JobFolder) -> None:
        """Prepare the tree of a host that was killed for its next start; other files stay.

        The secret, which the launcher removes at its start, is written again, and the failure that
        the host has reported is removed.

        Raises:
            JobError: A directory of the tree was replaced by a link.
            OSError: A file cannot be written.
        """
        for directory, names in {
            "input/config": (FILE,),
            "output": ("failure", "failure.json"),
        }.items():
            descriptor = open_directory(self.root, directory.split("/"))
            try:
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=descriptor)
            finally:
                os.close(descriptor)
        write_private(self.root / "input/config" / FILE, folder.secret())

    def restarts(self) -> tuple[dict[str, Any], ...]:
        """Return the failures after which the ranks were started again, as the launcher wrote them.

        Fields with other names than RESTART_FIELDS are left out. A link, a FIFO, and a file longer
        than 1 MiB count as no restarts.
        """
        try:
            found = json.loads(read_start(self.root, RESTARTS, _MAX_RESTARTS_BYTES))
        except (ValueError, RecursionError):
            return ()
        entries = found if isinstance(found, list) else []
        return tuple(
            {name: each[name] for name in RESTART_FIELDS & each.keys()}
            for each in entries
            if isinstance(each, dict)
        )

    def make_mount_points(self, job: LocalJob, names: Iterable[str]) -> None:
        """Create the mount points for the checkpoints and the data of a container.

        Docker would create missing mount points as root, and the user could not delete them.
        `names` are paths below the data directory: "train" for a directory, "train/a" for a file.
        """
        (self.root / job.checkpoint_folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            place = self.data / name
            if "/" in name:  # a single file
                place.parent.mkdir(exist_ok=True)
                place.touch()
            else:
                place.mkdir(exist_ok=True)

    def link_checkpoints(self, job: LocalJob, checkpoints: Path) -> None:
        """Link the directory `checkpoints`, which all hosts share, into this tree.

        This is for a host that runs as a process. A container mounts the directory.
        """
        shared = self.root / job.checkpoint_folder
        shared.parent.mkdir(parents=True, exist_ok=True)
        shared.symlink_to(checkpoints, target_is_directory=True)


def parse_failure_fields(document: bytes) -> dict[str, Any]:
    """Return the fields in the content of output/failure.json; an empty dict if it has none.

    Fields with other names than FAILURE_FIELDS are left out.
    """
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):  # RecursionError: thousands of nested lists
        return {}
    known = FAILURE_FIELDS & found.keys() if isinstance(found, dict) else ()
    return {name: found[name] for name in known}


def code_of(job: LocalJob, folder: JobFolder) -> Code | None:
    """Return the code that is copied to each host of a job; None if no code is copied.

    Without a copy, a host that runs as a process executes the code in the user's own directory.
    """
    source = job.source
    if source is None and job.in_containers:  # containers cannot read other directories
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
    job: LocalJob, host: LocalHost, tree: HostTree, master_port: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of a host that runs as a process, not in a container.

    Variables of SageMaker replace inherited ones. The job's own variables replace both; only the
    PYTHONPATHs of the job and of this process are joined.

    Args:
        job: Plan of the job.
        host: The host.
        tree: Its /opt/ml.
        master_port: TCP port at which rank 0 listens; the same for all hosts.
        inherited: Environment variables of this process.
    """
    kept = {name: value for name, value in inherited.items() if not _is_foreign(name)}
    own = {
        **sagemaker_environment(job, host),
        "AWS_REGION": kept.get("AWS_REGION", REGION),
        "SAGEMAKER_BASE_DIR": str(tree.root),
        "SM_CHECKPOINT_DIR": str((tree.root / job.checkpoint_folder).resolve()),
        "SMDIST_MASTER_PORT": str(master_port),
    }
    paths = [job.environment.get("PYTHONPATH"), kept.get("PYTHONPATH")]
    own_path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
    return {**kept, **own, **job.environment, **own_path}


def sagemaker_environment(job: LocalJob, host: LocalHost) -> dict[str, str]:
    """Return the environment variables that SageMaker sets on every host.

    SM_CHECKPOINT_DIR, the directory of checkpoints, is added; SageMaker does not have it. So is
    SMDIST_REPLACES_HOSTS, if a host that was killed is started again.
    """
    return {
        "AWS_REGION": REGION,
        "CURRENT_HOST": host.address,
        "SM_CHECKPOINT_DIR": str(CONTAINER_ROOT / job.checkpoint_folder),
        "TRAINING_JOB_ARN": job.arn,
        "TRAINING_JOB_NAME": job.name,
        **({"SMDIST_REPLACES_HOSTS": "1"} if job.replaces_hosts else {}),
    }


def _is_foreign(name: str) -> bool:
    return any(name == each or (each.endswith("_") and name.startswith(each)) for each in _FOREIGN)
