# SPDX-License-Identifier: Apache-2.0
"""Arguments of a job as the checks want them; a value of None is left out, or a pipeline's."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import metric_definitions
from sagemaker_dist.contract.spelling import AWS, MODEL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering.service import service_limits
from sagemaker_dist.planning import Terms

TERMS: Final = frozenset(field.name for field in fields(Terms)) - {
    "limits", "asked", "runs_script", "encodes_json", "is_written", "region", "bucket_regions"
}  # fmt: skip


def as_terms(
    given: Mapping[str, Any],
    *,
    asked: Collection[str],
    runs_script: bool = True,
    encodes_json: bool = True,
    **known: Any,
) -> Terms:
    """What SageMaker reads of a job's arguments; `asked` are those that somebody gave."""
    read: dict[str, Any] = {name: given.get(name) for name in TERMS}
    return Terms(
        limits=service_limits(),
        asked=frozenset(asked),
        runs_script=runs_script,
        encodes_json=encodes_json,
        **read,
        **known,
    )


def as_count(value: Any) -> Any:
    """A number of hosts as a plain int, whoever's integer it was (numpy has its own)."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


def with_parameters(distribution: Any) -> Any:
    """A `distribution=` whose model parallel parameters are a file, with what is in the file.

    Raises:
        OptionError: The file cannot be read, or holds no JSON object.
    """
    path = _parameters(distribution)
    if not isinstance(path, (str, PathLike)) or not _parameters(distribution, "enabled"):
        return distribution
    path = str(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unread(path, str(getattr(error, "strerror", None) or error)) from error
    if not isinstance(found, dict):
        raise _unread(path, f"it holds a {type(found).__name__}, not an object")
    model = {**distribution[AWS][MODEL], "parameters": found}
    return {**distribution, AWS: {**distribution[AWS], MODEL: model}}


def with_our_metrics(given: Any) -> Any:
    """Metric definitions, and those of our runtime's lines of other names; 40 in all at most.

    An empty list is an answer, and what a pipeline gives is left to it.
    """
    if given is not None and not (isinstance(given, list) and given):
        return given
    theirs: list[Any] = given or []
    names = [each.get("Name") for each in theirs if isinstance(each, Mapping)]
    own = [each for each in metric_definitions() if each["Name"] not in names]
    most = service_limits()["MetricDefinitionList"].most
    return theirs + own[: max(0, most - len(theirs)) if most else None]


def _parameters(distribution: Any, name: str = "parameters") -> Any:
    for key in (AWS, MODEL, name):
        distribution = distribution.get(key) if isinstance(distribution, Mapping) else None
    return distribution


def _unread(path: str, why: str) -> OptionError:
    return OptionError(
        f"distribution[{AWS!r}][{MODEL!r}]['parameters'] is {path!r}",
        f"it cannot be read: {why}",
        "Pass the path of a JSON file, or a dict",
    )
