# SPDX-License-Identifier: Apache-2.0
"""Facts from the model of SageMaker's API in the installed boto3, read without network access."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import botocore.session

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, training_instances
from sagemaker_dist.planning import Limit

# Java's character classes that Python's re does not have, with classes that contain them.
_JAVA_CLASSES: Final = {
    r"\p{L}": r"\w", r"\p{N}": r"\w", r"\p{Alnum}": r"\w", r"\p{Z}": r"\s"
}  # fmt: skip


def is_known_to_boto3(instance_type: Any) -> bool:
    """Return whether only boto3 knows an instance type, not the package's table.

    The result is True for instance types that AWS added after this package was released.
    """
    table = {*training_instances(), *LOCAL, LOCAL_PROCESS}
    if not isinstance(instance_type, str) or instance_type in table:
        return False
    return instance_type in _model().shape_for("TrainingInstanceType").enum


@cache
def service_limits() -> Mapping[str, Limit]:
    """Return the limits of CreateTrainingJob's parameters, by the names of their shapes.

    A shape is a type of the service model, such as "TrainingJobName".
    """
    found: dict[str, Limit] = {}
    shapes = [_model().operation_model("CreateTrainingJob").input_shape]
    while shapes:
        shape = shapes.pop()
        if shape.name not in found:
            found[shape.name] = _limit(shape.metadata)
            shapes += [*getattr(shape, "members", {}).values()]
            shapes += [getattr(shape, n) for n in ("member", "key", "value") if hasattr(shape, n)]
    return found


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("sagemaker")


def _limit(metadata: Mapping[str, Any]) -> Limit:
    pattern = metadata.get("pattern")
    for java, wider in _JAVA_CLASSES.items():
        pattern = pattern and pattern.replace(java, wider)
    try:
        re.compile(pattern or "")
    except re.error:
        pattern = None
    return Limit(
        least=metadata.get("min"),
        most=metadata.get("max"),
        pattern=pattern,
        values=tuple(metadata.get("enum", ())),
    )
