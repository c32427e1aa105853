# SPDX-License-Identifier: Apache-2.0
"""Format in which the SDK sends options to the training image: one hyperparameter, as compact JSON.

    sagemaker_dist_config = {"version":2,"dataparallel":{"fusion_bytes":26214400,...}}
    sagemaker_dist_config = {"version":3,"modelparallel":{"microbatches":4,...,"engine":{...}}}
    sagemaker_dist_config = {"version":4,"dataparallel":{...},"framework":"tensorflow"}
    sagemaker_dist_config = {"version":5,"dataparallel":{...,"encrypt":true,"integrity":"off"}}
    sagemaker_dist_config = {"version":6,"dataparallel":{...,"gpu_collectives":"staged"}}
    sagemaker_dist_config = {"version":7,"dataparallel":{...,"max_restarts":3}}
    sagemaker_dist_config = {"version":8,"modelparallel":{...,"tensor_parallel_degree":2}}
    sagemaker_dist_config = {"version":9,"modelparallel":{...,"fp16":true}}
    sagemaker_dist_config = {"version":10,"modelparallel":{...,"offload_activations":true}}
    sagemaker_dist_config = {"version":11,"modelparallel":{...,"gradient_reduction":"microbatch"}}
    sagemaker_dist_config = {"version":12,"modelparallel":{...,"sequence_parallel":true}}
    sagemaker_dist_config = {"version":13,"modelparallel":{...,"offload_optimizer":true}}

Every option of version 2 or 3 is written, even if its value is the default. A job then does not
depend on the defaults of its image. The options of version 5, "encrypt" and "integrity", are
written only if one of them differs from its default, which no later image may change; the same is
true of "gpu_collectives", the option of version 6, of the options of version 7, "elastic_min",
"max_restarts" and "silence_seconds", of "tensor_parallel_degree", the option of version 8, and of
"fp16", the option of version 9, of the options of version 10, "offload_activations" and
"activation_loading_horizon", of "gradient_reduction", the option of version 11, of
"sequence_parallel", the option of version 12, and of "offload_optimizer", the option of version
13. The value "auto" of "sharding" needs version 11. A reader accepts documents of its own version
and of all older versions (tests/contract/golden has examples). It refuses newer versions and
unknown keys. The writer uses the oldest version that has all options of the job, so that older
images can still run the job.

Only documents for TensorFlow have the key "framework", which needs version 4. Older images, which
start ranks only for torch, therefore refuse these documents. Without the key "framework", the
launcher uses the framework that is installed in its image.

SageMaker allows at most 2,500 characters per hyperparameter and no line break
(AWS API reference, CreateTrainingJob, read 2026-11-21).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, Final

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.ranges import (
    ELASTIC_MIN,
    ENCRYPT,
    GPU_COLLECTIVES,
    INTEGRITY,
    MAX_RESTARTS,
    SILENCE,
)
from sagemaker_dist.contract.schedule_limits import AUTO
from sagemaker_dist.errors import KeyPath, OptionError, SkewError

KEY: Final = "sagemaker_dist_config"
VERSION: Final = 13  # newest version that this reader accepts
MAX_CHARACTERS: Final = 2500
Options = DataParallel | ModelParallel
_DATA: Final = "dataparallel"
_MODEL: Final = "modelparallel"
_FIRST: Final = {_DATA: 1, _MODEL: 3}  # first version that has the section
_WRITTEN: Final = {_DATA: 2, _MODEL: 3}  # oldest version that can express all its options
_FRAMEWORK: Final = "framework"
_FIRST_FRAMEWORK: Final = 4
# first version that has these options of DataParallel; each group is written whole or not at all
_LATER_OPTIONS: Final = {
    5: (INTEGRITY, ENCRYPT),
    6: (GPU_COLLECTIVES,),
    7: (ELASTIC_MIN, MAX_RESTARTS, SILENCE),
}
_DEFAULTS: Final = DataParallel()
# first version that has these options of ModelParallel itself
_LATER_MODEL_OPTIONS: Final = {
    8: ("tensor_parallel_degree",),
    9: ("fp16",),
    10: ("offload_activations", "activation_loading_horizon"),
    11: ("gradient_reduction",),
    12: ("sequence_parallel",),
    13: ("offload_optimizer",),
}
_FIRST_AUTO_SHARDING: Final = 11
_MODEL_DEFAULTS: Final = ModelParallel()
FRAMEWORKS: Final = ("torch", "tensorflow")


def spell(options: Options, framework: str | None = None) -> str:
    """Return the options as the JSON document of this format; its length is not checked.

    Args:
        options: Options of the job.
        framework: "torch" or "tensorflow"; None leaves the choice to the image.
    """
    section = _MODEL if isinstance(options, ModelParallel) else _DATA
    document: dict[str, Any] = {"version": _WRITTEN[section], section: asdict(options)}
    if framework not in (None, "torch"):
        document |= {"version": _FIRST_FRAMEWORK, _FRAMEWORK: framework}
    engine = document[section]["engine"] if section == _MODEL else document[section]
    versions = [document["version"], *_written(engine, _LATER_OPTIONS, _DEFAULTS)]
    if section == _MODEL:
        versions += _written(document[section], _LATER_MODEL_OPTIONS, _MODEL_DEFAULTS)
        if document[section]["sharding"] == AUTO:
            versions.append(_FIRST_AUTO_SHARDING)
    document["version"] = max(versions)
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def _written(
    options: dict[str, Any], later: Mapping[int, tuple[str, ...]], defaults: Options
) -> list[int]:
    """Remove later groups of options that have their defaults; return versions of the others.

    Args:
        options: Options by name, which is changed.
        later: Names of the options of each later version.
        defaults: Object with the defaults of the options.
    """
    versions = []
    for first, names in later.items():
        if any(options[name] != getattr(defaults, name) for name in names):
            versions.append(first)
        else:
            for name in names:
                del options[name]
    return versions


def render(options: Options, framework: str | None = None) -> str:
    """Return the options as the value of the hyperparameter sagemaker_dist_config.

    Args:
        options: Options of the job.
        framework: "torch" or "tensorflow"; None leaves the choice to the image.

    Raises:
        OptionError: The document is longer than SageMaker allows.
    """
    text = spell(options, framework)
    if len(text) > MAX_CHARACTERS:
        raise OptionError(
            f"the distribution options take {len(text)} characters",
            f"SageMaker allows at most {MAX_CHARACTERS} in one hyperparameter",
            "Shorten long values such as plan or shard_weights, or leave them out",
            about="distribution",
            kind="too_long",
        )
    return text


def parse(text: str, where: str = KEY) -> Options:
    """Return the options in a value of the hyperparameter sagemaker_dist_config.

    SageMaker's framework estimators encode the JSON document as a JSON string once more; a request
    to SageMaker's API does not. Both forms are accepted.

    Args:
        text: Value of the hyperparameter.
        where: Name of the hyperparameter in messages.

    Raises:
        SkewError: The document is newer than this reader, or sagemaker-dist did not write it.
        OptionError: An option in the document is wrong.
    """
    document, version = _read(text, where)
    known = [section for section, first in _FIRST.items() if version >= first]
    others = {"version", _FRAMEWORK} if version >= _FIRST_FRAMEWORK else {"version"}
    _check_keys(set(document) - {*others, *known}, version, where, ())
    if document.get(_FRAMEWORK, FRAMEWORKS[0]) not in FRAMEWORKS:
        raise _invalid(
            text, f"its framework is {document[_FRAMEWORK]!r}", where, _FRAMEWORK, kind="unknown"
        )
    sections = [section for section in known if section in document]
    if len(sections) != 1 or not isinstance(document[sections[0]], dict):
        why = f"it has no {' or '.join(map(repr, known))} section"
        fault = "conflict" if len(sections) > 1 else "missing"
        raise _invalid(text, why, where, known[-1], kind=fault)
    section = document[sections[0]]
    kind = ModelParallel if sections[0] == _MODEL else DataParallel
    _check_keys(set(section) - _keys(kind, version), version, where, sections)
    if isinstance(engine := section.get("engine"), dict):
        unknown = set(engine) - _keys(DataParallel, version)
        _check_keys(unknown, version, where, (*sections, "engine"))
    return kind(**section)


def parse_framework(text: str, where: str = KEY) -> str | None:
    """Return "torch" or "tensorflow", the framework in a value of sagemaker_dist_config.

    Returns None if the value names no framework. Then the launcher uses the framework of its image.

    Args:
        text: Value of the hyperparameter, which `parse` accepts.
        where: Name of the hyperparameter in messages.
    """
    found: str | None = _read(text, where)[0].get(_FRAMEWORK)
    return found


def parse_engine(text: str) -> DataParallel:
    """Return the `DataParallel` options in a value of the hyperparameter sagemaker_dist_config.

    If the value has `ModelParallel` options, return the field `engine` of these options.

    Args:
        text: Value of the hyperparameter.
    """
    return engine_of(parse(text))


def engine_of(options: Options) -> DataParallel:
    """Return the `DataParallel` options of a job: its own, or those of its field `engine`."""
    return options.engine if isinstance(options, ModelParallel) else options


def _read(text: str, where: str) -> tuple[dict[str, Any], int]:
    document = _decode(text, where)
    return document, _version(document, where)


def _decode(text: str, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
        if isinstance(document, str):
            document = json.loads(document)
    except ValueError as error:
        raise _invalid(text, f"it is not JSON ({error})", where, kind="not_json") from error
    except RecursionError as error:
        raise _invalid(text, "its brackets are nested too deep", where, kind="too_deep") from error
    if not isinstance(document, dict):
        why = f"it is a JSON {type(document).__name__}, not an object"
        raise _invalid(text, why, where, kind="type")
    return document


def _version(document: dict[str, Any], where: str) -> int:
    version = document.get("version")
    if type(version) is not int or version < 1:
        why = f"its version is {version!r}"
        raise _invalid(json.dumps(document), why, where, "version", kind="type")
    if version > VERSION:
        raise SkewError(
            f"{where} is a document of version {version}",
            f"this image reads versions up to {VERSION}",
            f"Use an image whose sagemaker-dist-runtime reads version {version},"
            f" or a sagemaker-dist that writes version {VERSION}",
            about="version",
        )
    return version


@cache
def _keys(kind: type[Options], version: int) -> frozenset[str]:
    """Return the names of the options of `kind` that a document of this version may have."""
    groups = _LATER_MODEL_OPTIONS if kind is ModelParallel else _LATER_OPTIONS
    later = {name for first, names in groups.items() if version < first for name in names}
    return frozenset(field.name for field in fields(kind)).difference(later)


def _check_keys(unknown: set[str], version: int, where: str, path: Iterable[str]) -> None:
    """Raise an error if there are unknown keys in the object at `path`."""
    if unknown:
        raise SkewError(
            f"{where} of version {version} has the unknown keys {sorted(unknown)}",
            "documents of this version do not have them",
            "Install the same release of sagemaker-dist and of sagemaker-dist-runtime",
            about=(*path, min(unknown)),
            kind="unknown",
        )


def _invalid(text: str, why: str, where: str, about: str | KeyPath = (), *, kind: str) -> SkewError:
    return SkewError(
        f"{where} is {text[:200]!r}",
        why,
        "Do not set this hyperparameter yourself: sagemaker_dist writes it",
        about,
        kind,
    )
