# SPDX-License-Identifier: Apache-2.0
"""Instance type whose speeds a file of `sagemaker-dist calibrate` has.

The file names the model and the number of GPUs, and no instance type. The type is the one of those
compared that has them, or the one that the user names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.cli.advice.candidates import Candidate
from sagemaker_dist.errors import OptionError, require


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredType:
    """Instance type with measured speeds.

    Attributes:
        instance_type: Name of the type.
        file: File of the speeds.
    """

    instance_type: str
    file: Path


def calibration_of(
    file: Path | None, named: str | None, candidates: Sequence[Candidate]
) -> MeasuredType | None:
    """Return the type whose speeds were measured; None without a file.

    Args:
        file: File of `sagemaker-dist calibrate`, or None.
        named: Type that the user says it is for, or None.
        candidates: Clusters that are compared.

    Raises:
        OptionError: The file cannot be read, was measured on other devices than the type has, or
            several types that are compared have these devices.
    """
    if file is None:
        require(
            named is None,
            what=f"--calibrated-type is {named!r} without --calibration",
            why="the type of measured speeds has no effect without these",
            hint="Pass --calibration FILE, or leave --calibrated-type out",
            about="calibrated_type",
            kind="no_effect",
        )
        return None
    device, count = _devices(file)
    names = list(dict.fromkeys(each.instance_type for each in candidates))
    fitting = [name for name in names if _has(name, device, count)]
    measured = f"{file} was measured on {count} x {device}"
    if named is not None:
        require(
            named in fitting,
            what=f"--calibrated-type is {named!r}",
            why=measured if named in names else "this type is not compared",
            hint=_choices(fitting),
            about="calibrated_type",
            kind="conflict",
        )
        return MeasuredType(instance_type=named, file=file)
    require(
        len(fitting) == 1,
        what=f"--calibration is {str(file)!r}",
        why=f"{measured}, which {len(fitting) or 'none'} of the compared types have",
        hint=_choices(fitting),
        about="calibration",
        kind="ambiguous" if fitting else "conflict",
    )
    return MeasuredType(instance_type=fitting[0], file=file)


def _choices(fitting: Sequence[str]) -> str:
    if fitting:
        return f"Pass --calibrated-type with one of {', '.join(fitting)}"
    return "Pass --instance-type with the type that was measured, or leave --calibration out"


def _has(name: str, device: str, count: int) -> bool:
    """Return True if a type has so many GPUs of this model."""
    instance = training_instances()[name]
    words, model = device.replace("-", " ").split(), (instance.accelerator or "").split()
    return bool(model) and set(model) <= set(words) and instance.num_accelerators == count


def _devices(file: Path) -> tuple[str, int]:
    """Return the model and the number of the devices that were measured.

    The planner checks the rest of the file.
    """
    try:
        found: Any = json.loads(file.read_text("utf-8"))
        machine = found["machine"]
        return str(machine["device_name"]), int(machine["num_devices"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        why = str(
            getattr(error, "strerror", None) or "it is not a file of sagemaker-dist calibrate"
        )
        raise OptionError(
            f"--calibration is {str(file)!r}",
            why,
            "Run sagemaker-dist calibrate -o FILE on an instance, and pass this file",
            about="calibration",
            kind="not_calibration",
        ) from error
