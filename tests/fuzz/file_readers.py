# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of options and files: those of SageMaker, of its SDK, and of users."""

from __future__ import annotations

import contextlib
import json
import pickle
from functools import cache
from pathlib import Path

import torch
from byte_source import ByteSource, ValidDocuments
from plan_problems import Model, problem
from reader_list import FOLDER, target, written
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from sagemaker_dist.contract import DataParallel, ModelParallel
from sagemaker_dist.contract.hyperparameter_format import (
    parse,
    parse_engine,
    parse_framework,
    spell,
)
from sagemaker_dist.errors import LaunchError, OptionError, SkewError
from sagemaker_dist.jobs.job_file import job_file_reader
from sagemaker_dist.jobs.job_file.toml_lines import key_lines, key_path, split_pair
from smdist.container_files import read_drivers, read_object, read_resources
from smdist.modelparallel.core.plan import Plan, plan_json
from smdist.modelparallel.core.planner import find_plan
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.dcp_metadata import (
    file_sizes,
    read_metadata,
)

# What depends on classes alone is computed once: it takes most of the time of these readers.
job_file_reader.job_schema = cache(job_file_reader.job_schema)
for _function in ("get_type_hints", "get_origin", "get_args", "fields"):
    setattr(plan_json, _function, cache(getattr(plan_json, _function)))

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
    assert isinstance(parse_engine(text), DataParallel)


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
        found = read_resources(written("resourceconfig.json", text))
    except LaunchError:
        return
    assert found.current_host in found.hosts
    assert isinstance(found.groups, dict)


_CHANNELS = ValidDocuments({"training": {"TrainingInputMode": "File", "RecordWrapperType": "None"}})


@target
def input_data_config(source: ByteSource) -> None:
    """The file inputdataconfig.json, and every other that is a JSON object."""
    path = written("inputdataconfig.json", source.json_text(_CHANNELS))
    with contextlib.suppress(LaunchError):
        assert isinstance(read_object(path), dict)


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
    folder = "input/data/sm_drivers"
    written(f"{folder}/distributed.json", source.json_text(_DRIVERS))
    written(f"{folder}/sourcecode.json", source.json_text(_SOURCES))
    try:
        drivers = read_drivers(FOLDER)
    except (LaunchError, OptionError):
        return
    if drivers is not None:
        json.loads(drivers.document)
        assert isinstance(drivers.program, str)


_JOB = Path(__file__).with_name("job.toml").read_text(encoding="utf-8").splitlines(keepends=True)


@target
def job_file(source: ByteSource) -> None:
    """A job file in TOML, and the settings of a command line."""
    kind = source.below(8)
    if kind == 7:
        text = source.rest().decode("utf-8", "surrogateescape")
    else:
        lines = [line for line in _JOB if source.below(16) != 15]
        for _ in range(source.below(4)):
            at = source.below(len(lines) + 1)
            piece = (
                source.pick(_JOB) if source.below(2) else source.bytes(24).decode(errors="replace")
            )
            lines.insert(at, piece + ("\n" if source.below(2) else ""))
        text = "".join(lines)
    settings = [source.text(24) for _ in range(source.below(3))]
    path = written("job.toml", text)
    with contextlib.suppress(OptionError):
        found = job_file_reader.read_job_file(path, settings)
        assert set(key_lines(text)) >= {(name,) for name in found.values} or settings


@target
def setting(source: ByteSource) -> None:
    """KEY=VALUE of the option `--set`."""
    text = source.rest().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        key, _ = split_pair(text)
        assert key_path(key)


@cache
def _plans() -> ValidDocuments:
    model = Model(seconds=(1e-3, 1e-3), tied=True)
    found = find_plan(problem(model, ranks=2, pipeline_parallel_degree=2, schedule="1f1b"))
    return ValidDocuments(found.document())


@target
def plan(source: ByteSource) -> None:
    """The file of a plan, which users edit."""
    path = written("plan.json", source.json_text(_plans()))
    try:
        found = Plan.load(path)
    except OptionError:
        return
    assert Plan.from_document(json.loads(json.dumps(found.document()))) == found
    with contextlib.suppress(OptionError):  # a plan may name a schedule that does not exist
        assert found.explain()


@cache
def _metadata() -> bytes:
    """Metadata of a checkpoint in two files."""
    size = torch.Size([4, 2])
    parts = [dcp.ChunkStorageMetadata(torch.Size([at, 0]), torch.Size([2, 2])) for at in (0, 2)]
    properties = dcp.TensorProperties(dtype=torch.bfloat16)
    places = {
        dcp.MetadataIndex("model.a", part.offsets, number): _StorageInfo(f"1_{number}_0", 0, 99)
        for number, part in enumerate(parts)
    }
    found = dcp.Metadata(
        {
            "model.a": dcp.TensorStorageMetadata(properties, size, parts),
            "record": dcp.BytesStorageMetadata(),
        },
        storage_data={**places, dcp.MetadataIndex("record"): _StorageInfo("1_0_0", 99, 7)},
        storage_meta=dcp.StorageMeta(checkpoint_id="a", save_id="1"),
        version="1.0.0",
    )
    return pickle.dumps(found)


@target
def checkpoint_metadata(source: ByteSource) -> None:
    """The file that lists the values of a checkpoint, with a few bytes of it changed."""
    data = bytearray(_metadata() if source.below(8) else b"")
    for _ in range(source.below(4)):
        at = int.from_bytes(source.bytes(2), "little") % (len(data) + 1)
        data[at : at + source.below(8)] = source.bytes(source.below(8))
    (FOLDER / ".metadata").write_bytes(data + source.rest())
    with contextlib.suppress(CheckpointError):
        found = read_metadata(FOLDER)
        assert all(size >= 0 for size in file_sizes(found).values())
