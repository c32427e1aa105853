# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of the readers in Python: bytes, texts and files that others have written.

A target calls a reader with what an input makes. It fails if the reader raises another exception
than those that its docstring lists, or returns something that its annotations exclude.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from byte_source import ByteSource
from plan_problems import Model, problem

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
from sagemaker_dist.runners.local.opt_ml_tree import FAILURE_FIELDS, HostTree
from smdist.container_files import read_drivers, read_object, read_resources
from smdist.dataparallel.rendezvous.participants import Participant, mismatch, parse_participant
from smdist.dataparallel.rendezvous.store_protocol import (
    HEAD_BYTES,
    KEY_BYTES,
    UNAUTHENTICATED_BYTES,
    Frame,
    FrameError,
    FrameKind,
    greeting,
    has_secret,
    parse_frame,
    parse_head,
)
from smdist.launch.failure_file import MAX_CHARACTERS, describe, fields_of
from smdist.launch.guard_protocol import (
    GuardMessageError,
    RankFault,
    Report,
    parse_message,
    read_fault,
)
from smdist.launch.traceback_parser import find_culprit
from smdist.modelparallel.core.plan import Plan, plan_json
from smdist.modelparallel.core.planner import find_plan

# What depends on classes alone is computed once: it takes most of the time of these readers.
job_file_reader.job_schema = cache(job_file_reader.job_schema)
plan_json.get_type_hints = cache(plan_json.get_type_hints)

Target = Callable[[ByteSource], None]
TARGETS: dict[str, Target] = {}
_HERE = Path(__file__).parent
_FOLDER = Path(tempfile.mkdtemp(prefix="smdist-fuzz-"))


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


def run(name: str, data: bytes) -> None:
    TARGETS[name](ByteSource(data))


def words_of(*documents: Any) -> list[str]:
    """Return the keys and texts in JSON documents, which a reader may look for."""
    found: set[str] = set()
    for document in documents:
        inner = document.values() if isinstance(document, dict) else document
        found |= {document} if isinstance(document, str) else set()
        if isinstance(document, dict | list):
            found |= {*words_of(*inner), *(document if isinstance(document, dict) else ())}
    return sorted(found)[:256]


def written(name: str, text: str) -> Path:
    """Write a file of the input; the readers open it by its path."""
    path = _FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape" if _is_raw(text) else "replace"))
    return path


def _is_raw(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@target
def store_frame(source: ByteSource) -> None:
    """The frames of the rendezvous, and the first of them, the greeting."""
    is_greeting = source.below(4) == 0
    data = greeting(source.bytes(33), b"").to_bytes() if is_greeting else source.rest()
    data += bytes(HEAD_BYTES)
    if not is_greeting and data[0] & 64:  # a kind that exists, and lengths that are allowed
        data = bytes([1 + data[0] % 11, *data[1:9], 0, data[10] % 8, 0, 0, 0, data[14], *data[15:]])
    try:
        head = parse_head(data[:HEAD_BYTES], UNAUTHENTICATED_BYTES)
        assert head.body_bytes <= KEY_BYTES + UNAUTHENTICATED_BYTES
        body = data[HEAD_BYTES:][: head.body_bytes]
        frame = parse_frame(head, body)
        assert frame.to_bytes()[HEAD_BYTES:] == body
        has_secret(frame)
    except FrameError:
        return


_PARTICIPANT = Participant(rank=1, size=4, label="rank 1 on algo-2", job="j")
_JOINING = asdict(_PARTICIPANT)


@target
def participant(source: ByteSource) -> None:
    """The description that a rank sends when it joins."""
    text = source.json_text(words_of(_JOINING), _JOINING)
    value = text.encode("utf-8", "surrogateescape" if _is_raw(text) else "replace")
    kind = FrameKind.JOIN if source.below(8) else FrameKind.SET
    try:
        joined = parse_participant(Frame(kind, value=value))
    except FrameError:
        return
    assert joined.label is not None
    mismatch(joined, _PARTICIPANT)


_FAULT = RankFault(kind="lost", exception="PeerError", about="inputs", culprit=2, operation="sum")
_REPORT = asdict(Report(rank=3, status=1, at_seconds=17.5, error="a.B: text", frame="f:1 in g"))
_REPORT_OF_FAULT = {**_REPORT, "fault": asdict(_FAULT), "stopped": True, "status": -9}


@target
def guard_message(source: ByteSource) -> None:
    """Messages of a rank's guard to the launcher, and the failure that it makes of them."""
    documents = (_REPORT, _REPORT_OF_FAULT, {"rank": 3}, {"rank": None})
    text = source.json_text(words_of(*documents), *documents)
    try:
        found = parse_message(text.encode("utf-8", "surrogatepass"))
    except GuardMessageError:
        return
    if isinstance(found, Report):
        assert len(describe(found, "algo-1")) <= MAX_CHARACTERS
        json.dumps(fields_of(found, "algo-1"))
        assert 0 <= found.distance <= 3
        assert parse_message(found.encode()) == found


@target
def fault_file(source: ByteSource) -> None:
    """The file in which a rank describes the exception that has ended it."""
    document = asdict(_FAULT)
    found = read_fault(written("fault.json", source.json_text(words_of(document), document)))
    if found is not None:
        assert isinstance(found.kind, str)
        assert isinstance(found.culprit, int | None)


@target
def failure_fields(source: ByteSource) -> None:
    """The file in which a launcher describes a failure for the local runner."""
    document = {**fields_of(Report(rank=1, status=1, at_seconds=1.0), "algo-1"), **asdict(_FAULT)}
    written("output/failure.json", source.json_text(words_of(document), document))
    assert FAILURE_FIELDS >= HostTree(_FOLDER).failure_fields().keys()


_TRACEBACKS = (
    'Traceback (most recent call last):\n  File "/opt/ml/code/a.py", line 3, in f\n    g()\n',
    "ValueError: boom\n",
    "[rank3]: ",
    "  + Exception Group Traceback (most recent call last):\n",
    "    +-+---------------- 1 ----------------\n",
    "  | ",
    "[[{{node a}}]]\n",
    "tensorflow.python.framework.errors_impl.AbortedError: {{function_node __wrapped__}} x\n",
    "\n",
    "During handling of the above exception, another exception occurred:\n\n",
)


@target
def traceback_text(source: ByteSource) -> None:
    """The last lines that a rank has printed."""
    parts = []
    for _ in range(source.below(32)):
        is_known = source.below(8) < 6
        parts.append(source.pick(_TRACEBACKS).encode() if is_known else source.bytes(12))
    error, frame = find_culprit(b"".join(parts) + source.rest(), "/opt/ml/code")
    assert isinstance(error, str)
    assert isinstance(frame, str)


_OPTIONS = tuple(
    json.loads(spell(options, framework))
    for options in (DataParallel(), ModelParallel(microbatches=4))
    for framework in ("torch", "tensorflow")
)


@target
def hyperparameter(source: ByteSource) -> None:
    """The hyperparameter with the options of smdist."""
    text = source.json_text(words_of(*_OPTIONS), *_OPTIONS)
    if source.below(8) == 7:
        text = json.dumps(text)
    try:
        options = parse(text)
    except (OptionError, SkewError):
        return
    assert parse(spell(options, parse_framework(text))) == options
    assert isinstance(parse_engine(text), DataParallel)


_RESOURCES = {
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


@target
def resource_config(source: ByteSource) -> None:
    """The file resourceconfig.json."""
    text = source.json_text(words_of(_RESOURCES), _RESOURCES)
    try:
        found = read_resources(written("resourceconfig.json", text))
    except LaunchError:
        return
    assert found.current_host in found.hosts
    assert isinstance(found.groups, dict)


_CHANNELS = {"training": {"TrainingInputMode": "File", "RecordWrapperType": "None"}}


@target
def input_data_config(source: ByteSource) -> None:
    """The file inputdataconfig.json, and every other that is a JSON object."""
    path = written("inputdataconfig.json", source.json_text(words_of(_CHANNELS), _CHANNELS))
    with contextlib.suppress(LaunchError):
        assert isinstance(read_object(path), dict)


_SOURCE = {
    "source_dir": "/tmp/sourcedir.tar.gz",
    "entry_script": "train.py",
    "requirements": "auto",
    "command": None,
}


@target
def driver_files(source: ByteSource) -> None:
    """The two files in which ModelTrainer sends a request."""
    options = {"sagemaker_dist_config": _OPTIONS[0]}
    words = words_of(_SOURCE, options)
    folder = "input/data/sm_drivers"
    written(f"{folder}/distributed.json", source.json_text(words, options))
    written(f"{folder}/sourcecode.json", source.json_text(words, _SOURCE))
    try:
        drivers = read_drivers(_FOLDER)
    except (LaunchError, OptionError):
        return
    if drivers is not None:
        json.loads(drivers.document)
        assert isinstance(drivers.program, str)


_JOB = (_HERE / "job.toml").read_text(encoding="utf-8").splitlines(keepends=True)


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
def _plan_document() -> Any:
    model = Model(tied=True)
    found = find_plan(problem(model, ranks=2, pipeline_parallel_degree=2, schedule="1f1b"))
    return found.document()


@target
def plan(source: ByteSource) -> None:
    """The file of a plan, which users edit."""
    document = _plan_document()
    path = written("plan.json", source.json_text(words_of(document), document))
    try:
        found = Plan.load(path)
    except OptionError:
        return
    assert Plan.from_document(json.loads(json.dumps(found.document()))) == found
    with contextlib.suppress(OptionError):  # a plan may name a schedule that does not exist
        assert found.explain()


def remove_files() -> None:
    """Remove the files of the inputs; call it when no target runs any more."""
    shutil.rmtree(_FOLDER)
