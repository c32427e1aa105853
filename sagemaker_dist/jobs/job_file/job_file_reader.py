# SPDX-License-Identifier: Apache-2.0
"""Reader of a job file and of the `--set` options of a command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import eq, itemgetter
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import KeyPath, OptionError, parts_of, raise_all
from sagemaker_dist.jobs.job_checks import job_faults
from sagemaker_dist.jobs.job_file.json_schema import input_schema, is_file_system, job_schema
from sagemaker_dist.jobs.job_file.origins import Origins, with_paths
from sagemaker_dist.jobs.job_file.schema_check import (
    FLATTEN,
    Fault,
    depth_of,
    shape_faults,
)
from sagemaker_dist.jobs.job_file.settings import Setting, applied, parse_setting
from sagemaker_dist.jobs.job_file.toml_lines import DEEPEST, has_long_key, key_lines
from sagemaker_dist.jobs.training_job import TrainingJob
from sagemaker_dist.planning.request import (
    FileSystemInput,
    InstanceGroup,
    S3Input,
    TrainingOptions,
)
from sagemaker_dist.runners import Runner

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_MAX_CHARACTERS: Final = 1 << 20
_RAW: Final = "DataSource"  # key of a dict in the API's format, which Python's `inputs` may have
_OBJECTS: Final = frozenset({"inputs", "instance_groups"})  # options whose tables become objects
_NAMES: Final = frozenset(field.name for field in fields(TrainingOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """Values of a job file, changed by the `--set` options of a command line; not checked yet.

    Attributes:
        path: Path of the file.
        values: Name of each option -> its value, in the types of TOML. Relative paths were made
            absolute.
        origins: File and line of every key, for errors.
    """

    path: Path
    values: Mapping[str, Any]
    origins: Origins

    def job(
        self, *, session: Any = None, runner: Runner | None = None, **changes: Any
    ) -> TrainingJob:
        """Return the job that the file describes.

        Args:
            session: boto3.Session of the job; None for boto3's own settings.
            runner: Runner of the job; None to choose it by the instance type.
            changes: Options that replace options of the file; the value None removes an option.

        Raises:
            OptionError: The file or the job has faults; the error lists all of them, with lines.
        """
        values = {**self.values, **changes}
        values = {name: value for name, value in values.items() if value is not None}
        raise_all(self._faults(values, getattr(session, "region_name", None)))
        return TrainingJob(**_options(values), session=session, runner=runner)

    def _faults(self, values: dict[str, Any], region: str | None) -> Iterator[OptionError]:
        wrong, origins = list(_shape_faults(values)), self.origins
        found = [(origins.order(fault.path), origins.error(fault)) for fault in wrong]
        left_out = [_to_leave_out(fault.path) for fault in wrong]
        good = _without(values, left_out)
        for error in job_faults(TrainingOptions(**_options(good)), region=region):
            for fault in parts_of(error):
                key = origins.key_of(fault.about)
                if not _touches(fault.about, left_out) and not _touches(key or (), left_out):
                    found.append((origins.order(key), origins.placed(fault)))
        yield from (error for _, error in sorted(found, key=itemgetter(0)))


def _to_leave_out(path: KeyPath) -> KeyPath:
    """Return the path of the smallest value that a job can be without, if this one is wrong."""
    return path[:1] if path[0] in _OBJECTS else path


def _without(values: Mapping[str, Any], paths: Sequence[KeyPath]) -> dict[str, Any]:
    """Return a copy of the values without those at these paths.

    A path that leads into something else than a table takes that away as a whole.
    """
    kept: dict[Any, Any] = dict(values)
    inside: dict[Any, list[KeyPath]] = {}
    for first, *rest in paths:
        if rest and isinstance(kept.get(first), Mapping):
            inside.setdefault(first, []).append(tuple(rest))
        else:
            kept.pop(first, None)
    for name, rests in inside.items():
        if name in kept:
            kept[name] = _without(kept[name], rests)
    return kept


def _touches(path: KeyPath, others: Sequence[KeyPath]) -> bool:
    """Return whether one of the other paths is a part of this one, or the other way round."""
    return bool(path) and any(all(map(eq, path, each)) for each in others)


def read_job_file(path: str | Path, settings: Sequence[str] = ()) -> JobFile:
    """Read a job file, and return its values, changed by settings.

    `settings` are texts of the `--set` options of a command line, such as "instance_count=4".

    Raises:
        OptionError: The file cannot be read or is not TOML, or a setting is not KEY=VALUE.
    """
    path, schema = path if isinstance(path, Path) else Path(path), job_schema()
    values, text = _parsed(path)
    given = [parse_setting(each, schema) for each in settings]
    merged = _changed(with_paths(values, path.absolute().parent), given)
    return JobFile(
        path=path,
        values=merged,
        origins=Origins(
            file=str(path),
            lines=key_lines(text),
            settings=tuple(each.path for each in given),
            values=merged,
        ),
    )


def _parsed(path: Path) -> tuple[dict[str, Any], str]:
    try:
        with path.open(encoding="utf-8-sig") as file:  # editors on Windows write a byte order mark
            text = file.read(_MAX_CHARACTERS + 1)
        is_whole = len(text) <= _MAX_CHARACTERS
        is_deep = has_long_key(text)
        values = tomllib.loads(text) if is_whole and not is_deep else {}
    except OSError as error:
        why = error.strerror or str(error)
        raise OptionError(f"{path} cannot be read", why, "Pass the path of a job file") from error
    except UnicodeDecodeError as error:
        hint = "Save the file as UTF-8"
        raise OptionError(f"{path} is not UTF-8 text", str(error), hint) from error
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))  # only Python 3.14 has the line as a field
        line = (at[1] if at else None) or text.rstrip().count("\n") + 1
        why = _AT.sub("", str(error))
        what = f"{path}:{line}: the line is not valid TOML"
        raise OptionError(what, why, "Correct the line") from error
    except ValueError as error:  # a number with thousands of digits
        raise OptionError(
            f"{path} cannot be read because a number is too long",
            str(error),
            "Write a shorter number",
        ) from error
    except RecursionError as error:
        raise _too_deep(path) from error
    if not is_whole:
        raise _too_long(path)
    if is_deep or depth_of(values) > DEEPEST:
        raise _too_deep(path)
    return values, text


def _too_long(path: Path) -> OptionError:
    return OptionError(
        f"{path} cannot be read",
        f"it has more than {_MAX_CHARACTERS:,} characters",
        "Pass the path of a job file; large values belong in a file that the script reads",
        kind="too_long",
    )


def _too_deep(path: Path) -> OptionError:
    why = f"tables and arrays in the file are nested more than {DEEPEST} levels deep"
    return OptionError(f"{path} cannot be read", why, FLATTEN)


def _changed(values: dict[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the file's values, changed by the settings of the command line.

    Relative paths in settings are relative to the current directory.
    """
    given = with_paths(applied({}, settings), Path.cwd())
    if (
        "entry_point" in given and "source_dir" in values
    ):  # entry_point is then relative to source_dir
        given["entry_point"] = applied({}, settings)["entry_point"]
    absolute = [Setting(path=each.path, value=_at(given, each.path)) for each in settings]
    return applied(values, absolute)


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def _shape_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    schema = job_schema()
    inputs = schema["properties"]["inputs"]
    rest = {name: value for name, value in values.items() if name != "inputs"}
    yield from shape_faults(schema, rest)
    given = values.get("inputs")
    if isinstance(given, dict):
        for name, channel in given.items():
            path = ("inputs", name)
            if name == _RAW:
                why, hint = "the name is reserved", "Give the channel another name"
                yield Fault(path=path, why=why, hint=hint)
            uri = channel.get("uri") if isinstance(channel, dict) else None
            fitting = {"anyOf": [{"type": "string"}, input_schema(uri)]}
            yield from shape_faults(fitting, channel, path)
    elif given is not None:
        yield from shape_faults(inputs, given, ("inputs",))


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of TrainingOptions, by name, made from the values of a job file.

    `values` were checked against the schema before. Keys that name no option are left out.
    """
    options = {name: value for name, value in values.items() if name in _NAMES}
    if isinstance(options.get("inputs"), dict):
        options["inputs"] = {name: _input(each) for name, each in options["inputs"].items()}
    if "instance_groups" in options:
        groups = options["instance_groups"]
        options["instance_groups"] = [InstanceGroup(**each) for each in groups]
    return options


def _input(channel: Any) -> Any:
    if not isinstance(channel, dict):
        return channel
    return (FileSystemInput if is_file_system(channel["uri"]) else S3Input)(**channel)
