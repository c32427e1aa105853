# SPDX-License-Identifier: Apache-2.0
"""Options of smp.init and of the job, joined into one set.

As in SMP, the job's options win: a script keeps its own configuration for runs without a launcher,
and an estimator overrides it. Options that the job leaves at their defaults are the script's.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.distribution_keys import MODEL, OPTIONS, SMDIST
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.smp import smp_faults
from sagemaker_dist.contract.smp.keys import V1, V2
from sagemaker_dist.errors import OptionError, closest, raise_all, require
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.fingerprint import digest

Config = Mapping[str, Any] | str | os.PathLike[str] | ModelParallel | None
_STARTED: Final = "processes_per_host"
_log = logging.getLogger(__name__)
_AUTO: Final = "auto"
_DEGREE: Final = "pipeline_parallel_degree"
_OPEN: Final = (_DEGREE, "partitions", "microbatches", "pipeline")  # the planner finds "auto" ones
_TOGETHER: Final = (  # options that make sense only together
    frozenset(["pipeline", "active_microbatches", "virtual_stages"]),
    frozenset(["optimize", "memory_weight", "auto_partition", "default_partition"]),
    frozenset(["sharding", "shard_degree", "bf16"]),
)
_OUR_KEYS: Final = frozenset(OPTIONS[MODEL])
_WHERE: Final = "the configuration of smp.init"
_OF_PLAN: Final = (_TOGETHER[0] | _TOGETHER[1]) | {"plan", "device_memory"}


def chosen(config: Config, of_job: ModelParallel | None) -> ModelParallel:
    """Join the options of smp.init and of the job.

    Raises:
        OptionError: Options are wrong, or exclude each other; all faults.
    """
    own = read(config)
    if of_job is None:
        own = own or ModelParallel()
        raise_all(_too_late(own.engine))
        return own
    if own is None:
        return of_job
    taken = _of_job(of_job)
    _note(own, of_job, taken)
    return replace(own, **{name: getattr(of_job, name) for name in taken})


def with_plan(options: ModelParallel) -> tuple[ModelParallel, str]:
    """Return the options with the degree of their plan, and a digest of the plan's file.

    Raises:
        OptionError: The file cannot be read, or its plan has another degree.
    """
    if options.plan is None:
        return options, ""
    plan = Plan.load(options.plan)
    degree = plan.pipeline_parallel_degree
    require(
        options.pipeline_parallel_degree in (_AUTO, degree),
        what=f"pipeline_parallel_degree is {options.pipeline_parallel_degree!r}",
        why=f"the plan in {options.plan!r} has {degree}",
        hint="Leave it out, or name another plan",
    )
    said = digest([json.dumps(plan.document(), sort_keys=True)])
    return replace(options, pipeline_parallel_degree=degree), said


def read(config: Config) -> ModelParallel | None:
    """Read smp.init's configuration: SMP v1's keys, ours, or a JSON file; None if it is empty.

    A dict with a key that only ModelParallel has is ModelParallel's, and so is the result of
    its `distribution()`. Any other dict is SMP's, with SMP's defaults; the degree, microbatches and
    pipeline may also be "auto" in it.

    Raises:
        OptionError: The configuration is of another kind, or wrong; all its faults.
    """
    if config is None or isinstance(config, ModelParallel):
        return config
    if isinstance(config, str | os.PathLike):
        config = _file(Path(config))
    if not isinstance(config, Mapping):
        raise OptionError(
            f"{_WHERE} is a {type(config).__name__}",
            "it holds the parameters of SMP v1, or ModelParallel's",
            "Pass a dict, the path of a JSON file of one, or ModelParallel(...)",
        )
    if SMDIST in config:
        return _from_ours(_section(config))
    return _from_dict(config) if config else None


def _section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options in `distribution=`: {"smdist": {"modelparallel": {...}}}."""
    part = config[SMDIST]
    section = part.get(MODEL) if isinstance(part, Mapping) and len(part) == 1 else None
    if len(config) != 1 or not isinstance(section, Mapping):
        raise OptionError(
            f"{_WHERE} is {dict(config)!r}",
            f"beside {SMDIST!r} and {MODEL!r} nothing stands in it, and the latter is a dict",
            f"Pass {{{SMDIST!r}: {{{MODEL!r}: {{...}}}}}}, or the innermost dict alone",
        )
    return {name: value for name, value in section.items() if (name, value) != ("enabled", True)}


def _from_dict(config: Mapping[str, Any]) -> ModelParallel:
    """Read a dict of either kind of keys."""
    ours = [name for name in config if name in _OUR_KEYS and name not in V1]
    smps = [name for name in config if name in V1 and name not in _OUR_KEYS]
    require(
        not (ours and smps),
        what=f"{_WHERE} has keys of two kinds",
        why=f"{_names(ours)}: only ModelParallel has them; {_names(smps)}: only SMP v1 has them",
        hint="Keep the keys of one: those of ModelParallel(...), or those of SMP v1",
    )
    if ours:
        return _from_ours(config)
    unknown = _unknown(config, {*V1, *V2, *_OUR_KEYS})
    if unknown:
        rest = {name: value for name, value in config.items() if name in (*V1, *V2)}
        closed = {name: value for name, value in rest.items() if not _is_open(name, value)}
        raise_all([*unknown, *smp_faults(closed, version=1, where=_WHERE, for_smdist=True)])
    return _from_smp(config)


def _from_ours(config: Mapping[str, Any]) -> ModelParallel:
    """Read ModelParallel from its own keys."""
    faults = _unknown(config, _OUR_KEYS)
    known = {name: value for name, value in config.items() if name in _OUR_KEYS}
    try:
        options = ModelParallel(**known)
    except OptionError as error:
        raise_all([*faults, error])
        raise
    raise_all(faults)
    return options


def _unknown(config: Mapping[str, Any], known: Collection[str]) -> list[OptionError]:
    """Return faults for keys of neither kind; hints may name keys of either."""
    return [_no_key(str(name)) for name in config if name not in known]


def _no_key(name: str) -> OptionError:
    what = f"{_WHERE} has the key {name!r}"
    if name in {*V1, *V2}:
        why = "it is SMP's, and ModelParallel, whose keys the others are, has none like it"
        return OptionError(what, why, "Leave it out; docs/distributions.md has all of them")
    return OptionError(what, "no such key exists", closest(name, {*V1, *_OUR_KEYS}))


def _is_open(name: str, value: object) -> bool:
    return name in _OPEN and value == _AUTO


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _from_smp(config: Mapping[str, Any]) -> ModelParallel:
    open_ones = {name for name, value in config.items() if _is_open(name, value)}
    closed = {name: value for name, value in config.items() if name not in open_ones}
    found = {_DEGREE if name == "partitions" else name for name in open_ones}
    if _DEGREE in found:
        closed |= {_DEGREE: 1}  # the reader requires a degree
    opened: dict[str, Any] = dict.fromkeys(found, _AUTO)
    return replace(ModelParallel.from_smp(closed), **opened)


def _file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the configuration {os.fspath(path)!r} of smp.init cannot be read",
            str(getattr(error, "strerror", None) or error),
            "Pass the path of a JSON file of the dict",
        ) from error


def _of_job(of_job: ModelParallel) -> set[str]:
    """Return the options that the job decides: changed ones, those tied to them, its engine."""
    changed = {each.name for each in fields(of_job) if getattr(of_job, each.name) != each.default}
    families = [family for family in _TOGETHER if family & changed]
    if "plan" in changed:
        families.append(_OF_PLAN)
    return changed.union({"engine"}, *families)


def _too_late(engine: DataParallel) -> Iterator[OptionError]:
    """Yield faults for engine options that cannot change once ranks run."""
    plain = DataParallel()
    for each in fields(engine):
        value = getattr(engine, each.name)
        if value != getattr(plain, each.name) and each.name != "fusion_bytes":
            variable = "" if each.name == _STARTED else f", or set SMDIST_{each.name.upper()}"
            yield OptionError(
                f"smp.init was given engine.{each.name}={value!r}",
                "ranks and their engine are started before the script",
                f"Pass it to the job as distribution={variable}",
            )


def _note(own: ModelParallel, of_job: ModelParallel, taken: set[str]) -> None:
    """Log the script's values that the job overrides; values at their default do not count."""
    plain = ModelParallel()
    overridden = [
        f"{name} is {getattr(of_job, name)!r}, not {getattr(own, name)!r}"
        for name in sorted(taken)
        if getattr(own, name) not in (getattr(of_job, name), getattr(plain, name))
    ]
    if overridden:
        _log.warning("The job overrides what smp.init was given: %s.", "; ".join(overridden))
