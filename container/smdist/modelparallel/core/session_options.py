# SPDX-License-Identifier: Apache-2.0
"""Options of smp.init and of the job, joined into one `ModelParallel`.

Options of the job come from `distribution=` of an estimator. As in SMP, they override the options
of the script, unless they have their default values. If the script runs without a launcher, there
is no job, and the options of the script apply.
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
from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.fingerprint import digest

Config = Mapping[str, Any] | str | os.PathLike[str] | ModelParallel | None
_STARTED: Final = "processes_per_host"
_log = logging.getLogger(__name__)
_AUTO: Final = "auto"
_DEGREE: Final = "pipeline_parallel_degree"
_TENSOR: Final = "tensor_parallel_degree"
_OPEN: Final = (_DEGREE, "partitions", "microbatches", "pipeline")  # may be "auto"
_TOGETHER: Final = (  # options of one source: if the job sets one, all are the job's
    frozenset(["pipeline", "active_microbatches", "virtual_stages"]),
    frozenset(["optimize", "memory_weight", "auto_partition", "default_partition"]),
    frozenset(["sharding", "shard_degree", "gradient_reduction"]),
    frozenset(["bf16", "fp16"]),
    frozenset(["offload_activations", "activation_loading_horizon"]),
)
_OUR_KEYS: Final = frozenset(OPTIONS[MODEL])
_WHERE: Final = "the configuration of smp.init"
_OF_PLAN: Final = (_TOGETHER[0] | _TOGETHER[1]) | {"plan", "device_memory"}


def chosen(config: Config, of_job: ModelParallel | None) -> ModelParallel:
    """Return the options of smp.init, in which options of the job replace those of the script.

    Args:
        config: Configuration that the script passed to smp.init.
        of_job: Options of the job; None if the script runs without a launcher.

    Raises:
        OptionError: Options are wrong or contradict each other; the error lists all faults.
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
    """Read the plan file, and set the degrees of pipelines and of split layers to the plan's.

    The option `plan` is the path of the file. Without this option, the options do not change.

    Returns:
        The options, and a digest of the plan. The digest is "" if there is no plan.

    Raises:
        OptionError: The file cannot be read, or a degree is already set to another number.
    """
    if options.plan is None:
        return options, ""
    plan = Plan.load(options.plan)
    degrees = {_DEGREE: plan.pipeline_parallel_degree}
    if plan.tensor_parallel_degree > 1:
        degrees[_TENSOR] = plan.tensor_parallel_degree
    left_out = {_DEGREE: _AUTO, _TENSOR: 1}
    raise_all(
        OptionError(
            f"{name} is {value!r}",
            f"the plan in {options.plan!r} has {name} {degree}",
            f"Leave {name} out, or name another plan",
            about=name,
            kind="conflict",
        )
        for name, degree in degrees.items()
        if (value := getattr(options, name)) not in (left_out[name], degree)
    )
    plan_digest = digest([json.dumps(plan.document(), sort_keys=True)])
    decided: dict[str, Any] = degrees
    return replace(options, **decided), plan_digest


def read(config: Config) -> ModelParallel | None:
    """Convert smp.init's configuration to `ModelParallel`; return None without a configuration.

    A dict has the keys of `ModelParallel` or the keys of SMP v1. If all its keys exist in SMP v1,
    the defaults of SMP v1 apply. A result of `ModelParallel.distribution()` is accepted, too.

    Args:
        config: `ModelParallel(...)`, a dict, or the path of a JSON file that contains a dict. None
            and an empty dict are no configuration.

    Raises:
        OptionError: The configuration has another type, or is wrong; the error lists all faults.
    """
    if config is None or isinstance(config, ModelParallel):
        return config
    if isinstance(config, str | os.PathLike):
        config = _file(Path(config))
    if not isinstance(config, Mapping):
        raise OptionError(
            f"{_WHERE} is of type {type(config).__name__}",
            "it has to be a dict with the parameters of SMP v1, or with those of ModelParallel",
            "Pass a dict, the path of a JSON file with such a dict, or ModelParallel(...)",
            about="config",
        )
    if SMDIST in config:
        return _from_ours(_section(config))
    return _from_dict(config) if config else None


def _section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the innermost dict of {"smdist": {"modelparallel": {...}}}, without `"enabled": True`.

    Raises:
        OptionError: The dict has other keys or values outside of the innermost dict.
    """
    part = config[SMDIST]
    section = part.get(MODEL) if isinstance(part, Mapping) and len(part) == 1 else None
    if len(config) != 1 or not isinstance(section, Mapping):
        raise OptionError(
            f"{_WHERE} is {dict(config)!r}",
            f"the outer dict must have only the key {SMDIST!r}, and the dict in it only the key"
            f" {MODEL!r}, whose value must be a dict",
            f"Pass {{{SMDIST!r}: {{{MODEL!r}: {{...}}}}}}, or the innermost dict alone",
            about="config",
        )
    return {name: value for name, value in section.items() if (name, value) != ("enabled", True)}


def _from_dict(config: Mapping[str, Any]) -> ModelParallel:
    """Convert a dict with the keys of `ModelParallel`, or with those of SMP v1.

    Raises:
        OptionError: The dict mixes both, or a key or value is wrong.
    """
    ours = [name for name in config if name in _OUR_KEYS and name not in V1]
    smps = [name for name in config if name in V1 and name not in _OUR_KEYS]
    if ours and smps:
        raise OptionError(
            f"{_WHERE} mixes keys of ModelParallel and of SMP v1",
            f"only ModelParallel has {_names(ours)}, and only SMP v1 has {_names(smps)}",
            "Use the keys of ModelParallel(...) alone, or those of SMP v1 alone",
            about="config",
            kind="conflict",
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
    """Convert a dict with the keys of `ModelParallel`.

    Raises:
        OptionError: A key is unknown, or a value is wrong; the error lists all faults.
    """
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
    """Return an error for each key of a configuration that is not among the known ones."""
    return [_no_key(str(name)) for name in config if name not in known]


def _no_key(name: str) -> OptionError:
    """Return the error for a key of a configuration that does not exist, or that only SMP has."""
    what = f"{_WHERE} has the key {name!r}"
    if name in {*V1, *V2}:
        why = "only SMP has this key, and the other keys are those of ModelParallel"
        hint = "Leave it out; docs/distributions.md lists the keys of ModelParallel"
        return OptionError(what, why, hint, about=name, kind="conflict")
    hint = closest(name, {*V1, *_OUR_KEYS})
    return OptionError(what, "smp.init does not know this key", hint, about=name, kind="unknown")


def _is_open(name: str, value: object) -> bool:
    """Return True if the option has the value "auto" and allows it, so that the planner chooses."""
    return name in _OPEN and value == _AUTO


def _names(names: Iterable[str]) -> str:
    """Return names in quotation marks, sorted and separated by commas."""
    return ", ".join(map(repr, sorted(names)))


def _from_smp(config: Mapping[str, Any]) -> ModelParallel:
    """Convert a dict with SMP v1's keys, in which some values may be "auto"."""
    open_ones = {name for name, value in config.items() if _is_open(name, value)}
    closed = {name: value for name, value in config.items() if name not in open_ones}
    found = {_DEGREE if name == "partitions" else name for name in open_ones}
    if _DEGREE in found:
        closed |= {_DEGREE: 1}  # the reader requires a degree
    opened: dict[str, Any] = dict.fromkeys(found, _AUTO)
    return replace(ModelParallel.from_smp(closed), **opened)


def _file(path: Path) -> Any:
    """Read a configuration from a JSON file, and return it unchecked.

    Raises:
        OptionError: The file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"the configuration {os.fspath(path)!r} of smp.init cannot be read",
            str(getattr(error, "strerror", None) or error),
            "Pass the path of a JSON file that contains the configuration as a dict",
            about="config",
        ) from error


def _of_job(of_job: ModelParallel) -> set[str]:
    """Return the names of the options that the job sets, which override those of the script.

    The job sets an option if its value is not the default. Options that belong together, such as
    `pipeline` and `virtual_stages`, are set together. `engine` is always set by the job.
    """
    changed = {each.name for each in fields(of_job) if getattr(of_job, each.name) != each.default}
    families = [family for family in _TOGETHER if family & changed]
    if "plan" in changed:
        families.append(_OF_PLAN)
    return changed.union({"engine"}, *families)


def _too_late(engine: DataParallel) -> Iterator[OptionError]:
    """Yield an error for each engine option in smp.init that must be set before ranks start."""
    plain = DataParallel()
    for each in fields(engine):
        value = getattr(engine, each.name)
        if value != getattr(plain, each.name) and each.name != "fusion_bytes":
            variable = "" if each.name == _STARTED else f", or set SMDIST_{each.name.upper()}"
            yield OptionError(
                f"smp.init got engine.{each.name}={value!r}",
                "ranks and their engine have started before the script runs",
                f"Pass it to the job in distribution={variable}",
                about=("engine", each.name),
                kind="too_late",
            )


def _note(own: ModelParallel, of_job: ModelParallel, taken: set[str]) -> None:
    """Log a warning about options of the script that the job overrides.

    Options that have their default values in the script are not mentioned.

    Args:
        own: Options of the script.
        of_job: Options of the job.
        taken: Names of the options that are taken from the job.
    """
    plain = ModelParallel()
    overridden = [
        f"{name} is {getattr(of_job, name)!r}, not {getattr(own, name)!r}"
        for name in sorted(taken)
        if getattr(own, name) not in (getattr(of_job, name), getattr(plain, name))
    ]
    if overridden:
        _log.warning("Options of the job override those of smp.init: %s.", "; ".join(overridden))
