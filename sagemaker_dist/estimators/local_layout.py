# SPDX-License-Identifier: Apache-2.0
"""Temporary attributes of an estimator, for SageMaker's SDK to build the request of a local job.

With the user's attributes, the SDK's local mode would lose the folder of an entry point, ignore
dependencies and checkpoints, and change attributes that the user set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.planning import LocalSource
from sagemaker_dist.planning.locations import FILE

_CHECKPOINTS: Final = ("checkpoint_s3_uri", "checkpoint_local_path")
_CHANGED: Final = ("source_dir", "entry_point", *_CHECKPOINTS)


@contextmanager
def local_attributes(estimator: Any, source: LocalSource | None) -> Iterator[dict[str, Any]]:
    """Change attributes of an estimator for the SDK's local mode, during a `with` block.

    Yields a dict of arguments that the session adds to the job's request. Possible keys are
    "source" (the job's code), "checkpoint_s3_uri" and "checkpoint_local_path".
    """
    before = {name: getattr(estimator, name) for name in _CHANGED}
    extra = {name: before[name] for name in _CHECKPOINTS if before[name]}
    if source is not None:
        estimator.source_dir = str(source.folder)
        estimator.entry_point = source.only or before["entry_point"]
        extra["source"] = source
    estimator.checkpoint_s3_uri = estimator.checkpoint_local_path = None
    try:
        yield extra
    finally:
        for name, value in before.items():
            setattr(estimator, name, value)


def local_source(estimator: Any) -> LocalSource | None:
    """Return the code of an estimator: its source_dir or, without one, the script alone.

    The result is None for code in a git repository, and for an estimator without a script.
    """
    if estimator.git_config or estimator.entry_point is None:
        return None
    directory = estimator.source_dir
    script = Path(estimator.entry_point).absolute()
    return LocalSource(
        folder=Path(directory).absolute() if directory else script.parent,
        only=None if directory else script.name,
        dependencies=tuple(Path(each).absolute() for each in estimator.dependencies),
    )


def source_params(job_details: dict[str, Any], submitted: str | None) -> dict[str, Any]:
    """Return the estimator arguments for a job's code, such as source_dir and entry_point.

    The dict is empty if the place of the code is not known.

    Args:
        job_details: Description of the local job.
        submitted: URI in the job's hyperparameter sagemaker_submit_directory, or None.
    """
    source = LocalSource.parse(job_details.get("LocalSource"))
    if source is None:
        return {} if submitted is None else {"source_dir": submitted.removeprefix(FILE)}
    named = {"dependencies": [str(each) for each in source.dependencies]}
    if source.only is not None:
        return {**named, "source_dir": None, "entry_point": str(source.folder / source.only)}
    return {**named, "source_dir": str(source.folder)}
