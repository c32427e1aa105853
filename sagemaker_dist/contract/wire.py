# SPDX-License-Identifier: Apache-2.0
"""How options travel: one hyperparameter, compact JSON with a version.

    sagemaker_dist_config = {"version":2,"dataparallel":{"fusion_bytes":26214400,...}}

Every option is written out, so that an image's own defaults never matter. A
reader refuses a newer version and unknown keys; older documents parse forever
(golden files in tests/contract/golden).

SageMaker carries at most 2,500 characters per hyperparameter and no line break
(AWS API reference, CreateTrainingJob, read 2026-11-21).
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Final

from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.errors import OptionError, SkewError

KEY: Final = "sagemaker_dist_config"
VERSION: Final = 2
MAX_CHARACTERS: Final = 2500
_STRATEGY: Final = "dataparallel"


def render(options: DataParallel) -> str:
    """Write options as the value of the hyperparameter `KEY`.

    Raises:
        OptionError: The document is longer than SageMaker carries.
    """
    document = {"version": VERSION, _STRATEGY: asdict(options)}
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_CHARACTERS:
        raise OptionError(
            f"the distribution options take {len(text)} characters",
            f"SageMaker carries at most {MAX_CHARACTERS}",
            "Shorten or leave out long values",
        )
    return text


def parse(text: str) -> DataParallel:
    """Read the value of the hyperparameter `KEY`.

    The SDK's frameworks encode a string once more as JSON, the plain API does
    not; both are read.

    Raises:
        SkewError: The document is newer than this reader, or is not ours.
    """
    document = _decode(text)
    _check_version(document)
    section = document.get(_STRATEGY)
    _check_keys(set(document) - {"version", _STRATEGY}, document)
    if not isinstance(section, dict):
        raise _not_ours(text, f"it has no {_STRATEGY!r} section")
    _check_keys(set(section) - {field.name for field in fields(DataParallel)}, document)
    return DataParallel(**section)


def _decode(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
        if isinstance(document, str):
            document = json.loads(document)
    except ValueError as error:
        raise _not_ours(text, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise _not_ours(text, f"it is a JSON {type(document).__name__}, not an object")
    return document


def _check_version(document: dict[str, Any]) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise _not_ours(json.dumps(document), f"its version is {version!r}")
    if version > VERSION:
        raise SkewError(
            f"{KEY} is a document of version {version}",
            f"this image reads versions up to {VERSION}",
            f"Use an image whose sagemaker-dist-runtime reads version {version},"
            f" or a sagemaker-dist that writes version {VERSION}",
        )


def _check_keys(unknown: set[str], document: dict[str, Any]) -> None:
    if unknown:
        raise SkewError(
            f"{KEY} of version {document['version']} has the unknown keys {sorted(unknown)}",
            f"this image reads version {VERSION} without them",
            "Install the same release of sagemaker-dist and of sagemaker-dist-runtime",
        )


def _not_ours(text: str, why: str) -> SkewError:
    return SkewError(
        f"{KEY} is {text[:200]!r}", why, "Let sagemaker_dist write it; do not set it by hand"
    )
