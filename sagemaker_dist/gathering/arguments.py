# SPDX-License-Identifier: Apache-2.0
"""Arguments of a job in the form that the checks read; None is left out or a pipeline variable."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import metric_definitions
from sagemaker_dist.contract.distribution_keys import AWS, MODEL
from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering.service_model import service_limits
from sagemaker_dist.planning import Terms

TERMS: Final = frozenset(field.name for field in fields(Terms)) - {
    "limits", "passed", "runs_script", "encodes_json", "is_written", "region", "bucket_regions"
}  # fmt: skip


def service_terms(
    given: Mapping[str, Any],
    *,
    passed: Collection[str],
    runs_script: bool = True,
    encodes_json: bool = True,
    **known: Any,
) -> Terms:
    """Return the arguments that SageMaker reads; `passed` are the names that the user passed."""
    read: dict[str, Any] = {name: given.get(name) for name in TERMS}
    return Terms(
        limits=service_limits(),
        passed=frozenset(passed),
        runs_script=runs_script,
        encodes_json=encodes_json,
        **read,
        **known,
    )


def plain_count(value: Any) -> Any:
    """Return a number of hosts as a plain int; numpy integers become int, other values stay."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


def with_parameters(distribution: Any) -> Any:
    """Return the `distribution=` with the file of its model parallel parameters replaced by the
    content.

    Raises:
        OptionError: The file cannot be read, or does not hold a JSON object.
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


def add_runtime_metrics(given: Any) -> Any:
    """Return metric definitions with those of the runtime's log line added; at most 40 in all.

    An empty list stays empty, and a pipeline variable stays as it is.
    """
    if given is not None and not (isinstance(given, list) and given):
        return given
    users: list[Any] = given or []
    names = [each.get("Name") for each in users if isinstance(each, Mapping)]
    own = [each for each in metric_definitions() if each["Name"] not in names]
    most = service_limits()["MetricDefinitionList"].most
    return users + own[: max(0, most - len(users)) if most else None]


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
