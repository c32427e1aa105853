# SPDX-License-Identifier: Apache-2.0
"""Reading of the saved plan that `ModelParallel(plan=...)` names.

Only the degrees and batch sizes of the plan are read, so this machine does not need the runtime.
The runtime checks the whole plan against the model when the job starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import Distribution, plan_version
from sagemaker_dist.planning import Source, directory_of
from sagemaker_dist.planning.job import PlanFile

_NUMBERS: Final = (
    *("pipeline_parallel_degree", "data_parallel_degree", "tensor_parallel_degree"),
    *("batch_size", "num_microbatches"),
)
_LATER: Final = {"tensor_parallel_degree": 1}  # plans of version 1 lack it


def find_plan(
    distribution: Distribution, source: Source | None, dependencies: Iterable[Any] | None = None
) -> PlanFile | None:
    """Return the saved plan of a job, or the reason why it cannot be used, as a `PlanFile`.

    Returns None if the distribution names no plan, or if the script's directory is in S3 or does
    not exist.

    Args:
        distribution: Distribution of the job.
        source: Place of the script.
        dependencies: Files and directories that are sent next to the script.
    """
    name = None if distribution.model is None else distribution.model.plan
    if name is None or source is None or source.in_s3 or not source.directory_exists:
        return None
    if source.directory is None:
        where = "among the dependencies; without source_dir, only these and the script are sent"
    else:
        where = f"in source_dir {source.directory!r}"
    if Path(name).is_absolute() or ".." in Path(name).parts:
        problem = "it is not a path below the directory of the script; a plan must be"
        return PlanFile(path=name, where=where, problem=problem, kind="outside")
    found = next((each for each in _places(name, source, dependencies) if each.is_file()), None)
    if found is None:
        missing = "there is no such file"
        return PlanFile(path=name, where=where, problem=missing, kind="missing_file")
    return _read(name, found, where)


def _places(name: str, source: Source, dependencies: Iterable[Any] | None) -> Iterator[Path]:
    if source.directory is not None:
        yield Path(directory_of(source.directory)) / name
    for each in map(Path, map(str, dependencies or ())):
        if each.name == Path(name).parts[0]:
            yield each.parent / name


def _read(name: str, found: Path, where: str) -> PlanFile:
    try:
        document = json.loads(found.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", None) or error)
        problem = f"it cannot be read ({why}); it was found"
        return PlanFile(path=name, where=where, problem=problem, kind="unreadable_file")
    plan = document if isinstance(document, dict) else {}
    if plan_version.is_newer(plan.get("version")):
        reads = f"this release reads versions {plan_version.READ} of plans"
        problem = f"it has version {plan['version']}, and {reads}; it was found"
        return PlanFile(path=name, where=where, problem=problem, kind="version")
    read = {key: plan.get(key, _LATER.get(key)) for key in _NUMBERS}
    numbers = {key: value for key, value in read.items() if type(value) is int and value > 0}
    if len(numbers) < len(_NUMBERS):
        problem = "it is not a saved plan; it was found"
        return PlanFile(path=name, where=where, problem=problem, kind="corrupt")
    return PlanFile(path=name, where=where, numbers=numbers)
