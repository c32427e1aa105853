# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of options and files: those of SageMaker, of its SDK, and of users."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from byte_source import ByteSource, ValidDocuments
from reader_list import MEMORY, kept, target

from sagemaker_dist.contract import DataParallel, ModelParallel
from sagemaker_dist.contract.hyperparameter_format import (
    engine_of,
    parse,
    parse_framework,
    spell,
)
from sagemaker_dist.errors import LaunchError, OptionError, SkewError
from sagemaker_dist.jobs.job_file import job_file_reader
from sagemaker_dist.jobs.job_file.toml_lines import key_path, split_pair
from smdist.container_files import read_drivers, read_object, read_resources

_OPTIONS = tuple(
    json.loads(spell(options, framework))
    for options in (DataParallel(), ModelParallel(microbatches=4))
    for framework in ("torch", "tensorflow")
)
_HYPERPARAMETERS = ValidDocuments(*_OPTIONS)


@target
def hyperparameter(source: ByteSource) -> None:
    """The hyperparameter with the options of smdist."""
    text = source.json_text(_HYPERPARAMETERS)
    if source.below(8) == 7:
        text = json.dumps(text)
    try:
        options = parse(text)
    except (OptionError, SkewError):
        return
    assert parse(spell(options, parse_framework(text))) == options
    assert isinstance(engine_of(options), DataParallel)


_RESOURCE_FILE = MEMORY / "resourceconfig.json"
_RESOURCES = ValidDocuments(
    {
        "current_host": "algo-1",
        "current_instance_type": "ml.p4d.24xlarge",
        "current_group_name": "a",
        "hosts": ["algo-1", "algo-2", "algo-10"],
        "instance_groups": [
            {"instance_group_name": "a", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1"]},
            {"instance_group_name": "b", "instance_type": "ml.c5.xlarge", "hosts": ["algo-2"]},
        ],
        "network_interface_name": "eth0",
    }
)


@target
def resource_config(source: ByteSource) -> None:
    """The file resourceconfig.json."""
    text = source.json_text(_RESOURCES)
    try:
        found = read_resources(kept(_RESOURCE_FILE, text))
    except LaunchError:
        return
    assert found.current_host in found.hosts
    assert isinstance(found.groups, dict)


_CHANNEL_FILE = MEMORY / "inputdataconfig.json"
_CHANNELS = ValidDocuments({"training": {"TrainingInputMode": "File", "RecordWrapperType": "None"}})


@target
def input_data_config(source: ByteSource) -> None:
    """The file inputdataconfig.json, and every other that is a JSON object."""
    path = kept(_CHANNEL_FILE, source.json_text(_CHANNELS))
    with contextlib.suppress(LaunchError):
        assert isinstance(read_object(path), dict)


_DRIVER_FOLDER = MEMORY / "input" / "data" / "sm_drivers"
_DRIVER_FILE = _DRIVER_FOLDER / "distributed.json"
_SOURCE_FILE = _DRIVER_FOLDER / "sourcecode.json"
_SOURCE = {
    "source_dir": "/tmp/sourcedir.tar.gz",
    "entry_script": "train.py",
    "requirements": "auto",
    "command": None,
}
_REQUEST = {"sagemaker_dist_config": _OPTIONS[0]}
_DRIVERS = ValidDocuments(_REQUEST, words=(_SOURCE, _REQUEST))
_SOURCES = ValidDocuments(_SOURCE, words=(_SOURCE, _REQUEST))


@target
def driver_files(source: ByteSource) -> None:
    """The two files in which ModelTrainer sends a request."""
    kept(_DRIVER_FILE, source.json_text(_DRIVERS))
    kept(_SOURCE_FILE, source.json_text(_SOURCES))
    try:
        drivers = read_drivers(MEMORY)
    except (LaunchError, OptionError):
        return
    if drivers is not None:
        json.loads(drivers.document)
        assert isinstance(drivers.program, str)


_JOB_FILE = MEMORY / "job.toml"
_JOB = Path(__file__).with_name("job.toml").read_text(encoding="utf-8").splitlines(keepends=True)


@target
def job_file(source: ByteSource) -> None:
    """A job file in TOML, and the settings of a command line."""
    kind = source.below(8)
    if kind == 7:
        text = source.rest().decode("utf-8", "surrogateescape")
    else:
        first = source.below(len(_JOB))
        lines = _JOB[first : first + source.below(16)]
        for _ in range(source.below(4)):
            at = source.below(len(lines) + 1)
            piece = (
                source.pick(_JOB) if source.below(2) else source.bytes(24).decode(errors="replace")
            )
            lines.insert(at, piece + ("\n" if source.below(2) else ""))
        text = "".join(lines)
    settings = [source.text(24) for _ in range(source.below(3))]
    path = kept(_JOB_FILE, text)
    with contextlib.suppress(OptionError):
        found = job_file_reader.read_job_file(path, settings)
        assert found.origins.lines.keys() >= {(name,) for name in found.values} or settings


@target
def setting(source: ByteSource) -> None:
    """KEY=VALUE of the option `--set`."""
    text = source.rest().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        key, _ = split_pair(text)
        assert key_path(key)
