# SPDX-License-Identifier: Apache-2.0
"""JSON file of a calibration: the fields of `Calibration`, with kind and version of the format.

{"kind": "calibration", "version": 2, "date": "2026-11-27",
 "machine": {"processor": "AMD EPYC 7R32", "num_cores": 4, ...},
 "versions": {"torch": "2.13.0"},
 "products": [{"dtype": "float32", "size": 1024, "flops_per_second": 1.5e11}, ...],
 "memory_bytes_per_second": 2e10,
 "all_reduce": [{"num_ranks": 2, "num_bytes": 1048576, "seconds": 7e-4}, ...],
 "messages": [{"num_bytes": 1024, "seconds": 5e-5}, ...],
 "folders": [{"folder": "disk", "num_bytes": 67108864, "write_bytes_per_second": 5e8,
              "read_bytes_per_second": 1e9}],
 "disturbance": {"busy_share": 0.02, "repeat_spread": 0.05}}

Version 1 has no "disturbance".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.calibration.calibration import Calibration
from smdist.modelparallel.core.plan import plan_file, plan_json
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.core.quantities import shown

KIND: Final = "calibration"
VERSION: Final = 2
_READ: Final = (1, VERSION)
_HINT: Final = "Pass a file that sagemaker-dist calibrate wrote"


def load(path: str | Path) -> Calibration:
    """Return the calibration in a file.

    Raises:
        PlanError: The file cannot be read, is not JSON, is not a calibration, or has missing,
            unknown or wrong values; all wrong values are reported at once.
    """
    place = plan_file.path_of(path)
    try:
        found = plan_file.read(place)
        if not isinstance(found, dict) or found.get("kind") != KIND:
            what, why = f"{place} is not a calibration", f'it lacks "kind": "{KIND}"'
            raise PlanError(what, why, _HINT, about="path", kind="not_calibration")
        if found.get("version") not in _READ or isinstance(found["version"], bool):
            what = f"{place} has version {shown(found.get('version'))}"
            why = f"this release reads versions {_READ[0]} to {VERSION} of calibrations"
            hint = "Run sagemaker-dist calibrate again"
            raise PlanError(what, why, hint, about="version", kind="version")
    except OptionError as error:
        raise PlanError(
            error.what, error.why, error.hint.replace("path of a saved plan", KIND),
            error.about, error.kind,
        ) from error  # fmt: skip
    rest = {key: value for key, value in found.items() if key not in ("kind", "version")}
    try:
        return plan_json.convert(Calibration, rest, "the calibration", what="a calibration")
    except OptionError as error:
        raise plan_file.named(place, error) from error


def save(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration to a JSON file; an existing file is replaced atomically.

    Raises:
        PlanError: The file cannot be written.
    """
    plan_file.write(plan_file.path_of(path), document(calibration))


def document(calibration: Calibration) -> dict[str, object]:
    """Return a calibration as a dict of JSON types, with kind and version of the format."""
    return {"kind": KIND, **plan_json.write(calibration), "version": VERSION}
