# SPDX-License-Identifier: Apache-2.0
"""Conversion of a job's arguments to the values that the checks read.

In these values, None stands for an argument that is left out or is a pipeline variable.
"""

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
    """Return the arguments that SageMaker reads, with the limits of SageMaker's service model.

    Args:
        given: All arguments of the job by name; None if left out or a pipeline variable.
        passed: Names of the arguments that the user passed, including pipeline variables.
        runs_script: True if hyperparameters become the command line of a script.
        encodes_json: True if the SDK encodes hyperparameters as JSON, False if with str().
        known: Further fields of `Terms`, such as `region`.
    """
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
    """Return an integer of any type, such as numpy's, as an int; return other values unchanged."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


def with_parameters(distribution: Any) -> Any:
    """Return `distribution=` with the parameters of AWS's model parallel library as a dict.

    SageMaker's SDK also accepts the path of a JSON file in place of this dict; such a path is
    replaced by the content of the file. Any other distribution is returned unchanged.

    Raises:
        OptionError: The file cannot be read, or does not contain a JSON object.
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
        raise _unread(path, f"it contains a JSON {type(found).__name__}, not an object")
    model = {**distribution[AWS][MODEL], "parameters": found}
    return {**distribution, AWS: {**distribution[AWS], MODEL: model}}


def add_runtime_metrics(given: Any) -> Any:
    """Return the user's metric definitions, followed by the runtime's own definitions.

    The runtime's definitions extract the values of its metrics line. They are not added beyond
    SageMaker's limit of 40 definitions, and not if the user has defined a metric of the same name.
    If `given` is an empty list or a pipeline variable, it is returned unchanged.
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
