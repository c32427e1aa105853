# SPDX-License-Identifier: Apache-2.0
"""What `distribution=` may be: the typed option, our dict form, or AWS's.

    DataParallel(fusion_bytes=...)                            typed
    {"smdist": {"dataparallel": {"fusion_bytes": ...}}}       the same as a dict
    {"smdistributed": {"dataparallel": {"enabled": True}}}    AWS's, mapped onto ours

Every other key that SageMaker's SDK knows is passed on untouched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.errors import OptionError, closest, raise_all

OURS: Final = "smdist"
AWS: Final = "smdistributed"
_MPI: Final = ("enabled", "processes_per_host", "custom_mpi_options")
PARENT_KEYS: Final = {  # SageMaker SDK 2.257.7, fw_utils.py and estimator.py: key to its own keys
    "torch_distributed": ("enabled",),
    "pytorchddp": ("enabled", "custom_mpi_options"),
    "pytorchxla": ("enabled",),
    "mpi": _MPI,
    "parameter_server": ("enabled",),
    "multi_worker_mirrored_strategy": ("enabled",),
    "instance_groups": (),
}
_STRATEGY: Final = "dataparallel"
_AWS_STRATEGIES: Final = (_STRATEGY, "modelparallel")
_OPTIONS: Final = frozenset(option.name for option in fields(DataParallel))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A `distribution=` taken apart.

    Attributes:
        ours: What our runtime is asked to do, or None.
        rest: The keys that go to SageMaker's SDK as they came.
    """

    ours: DataParallel | None = None
    rest: dict[str, Any] = field(default_factory=dict)


def read_distribution(value: object) -> Distribution:
    """Take a `distribution=` apart.

    Raises:
        OptionError: It is no distribution; every unknown key and bad value is
            reported at once, each with the closest valid key.
    """
    if value is None:
        return Distribution()
    if isinstance(value, DataParallel):
        return Distribution(ours=value)
    if not isinstance(value, dict):
        raise OptionError(
            f"distribution is {value!r}",
            "it is neither an option of sagemaker_dist nor a dict",
            "Pass distribution=DataParallel()",
        )
    raise_all(_faults(value))
    rest = {key: part for key, part in value.items() if not _is_ours(key, part)}
    ours = [_build(key, part[_STRATEGY]) for key, part in value.items() if _is_ours(key, part)]
    return Distribution(ours=next(filter(None, ours), None), rest=rest)


def _is_ours(key: str, part: Any) -> bool:
    return key == OURS or (key == AWS and isinstance(part, dict) and _STRATEGY in part)


def _build(key: str, section: dict[str, Any]) -> DataParallel | None:
    options = {name: section[name] for name in _OPTIONS & set(section)}
    is_on = section.get("enabled", key == OURS)  # AWS's form is off unless it says otherwise
    return DataParallel(**options) if is_on else None


def _faults(value: dict[str, Any]) -> Iterator[OptionError]:
    valid = {OURS, AWS, *PARENT_KEYS}
    for key, part in value.items():
        if key not in valid:
            yield _unknown("distribution", key, valid)
        elif not _is_ours(key, part):
            yield from _parent_faults(key, part)
    sections = [key for key, part in value.items() if _is_ours(key, part)]
    for key in sections:
        yield from _section_faults(key, value[key])
    if len(sections) > 1:
        yield OptionError(
            f"distribution has both {OURS!r} and {AWS!r}",
            "both ask for the same data parallelism",
            f"Keep {OURS!r}",
        )


def _parent_faults(key: str, part: Any) -> Iterator[OptionError]:
    """SageMaker's SDK ignores a key it does not know; we do not."""
    valid = _AWS_STRATEGIES if key == AWS else PARENT_KEYS[key]
    if valid and isinstance(part, dict):
        for name in part:
            if name not in valid:
                yield _unknown(f"distribution[{key!r}]", name, valid)


def _section_faults(key: str, part: Any) -> Iterator[OptionError]:
    where = f"distribution[{key!r}]"
    if not isinstance(part, dict) or not isinstance(part.get(_STRATEGY, {}), dict):
        yield OptionError(
            f"{where} is {part!r}",
            "a strategy is a dict of dicts",
            f"Pass {{{key!r}: {{{_STRATEGY!r}: {{'enabled': True}}}}}}",
        )
        return
    valid = _AWS_STRATEGIES if key == AWS else (_STRATEGY,)
    for name in part:
        if name not in valid:
            yield _unknown(where, name, valid)
    if not part:
        yield OptionError(f"{where} is empty", "it names no strategy", f"Name {_STRATEGY!r}")
    if key == AWS and len(set(part) & set(_AWS_STRATEGIES)) > 1:
        yield OptionError(
            f"{where} has both {_AWS_STRATEGIES[0]!r} and {_AWS_STRATEGIES[1]!r}",
            "a job has one strategy of the two",
            "Keep one",
        )
    yield from _option_faults(f"{where}[{_STRATEGY!r}]", key, part.get(_STRATEGY, {}))


def _option_faults(where: str, key: str, section: dict[str, Any]) -> Iterator[OptionError]:
    known = _OPTIONS | {"enabled"}
    for name in section:
        if name == "custom_mpi_options" and key == AWS:
            if section[name]:
                yield OptionError(
                    f"{where} has custom_mpi_options {section[name]!r}",
                    "our runtime starts ranks with torchrun and uses no MPI",
                    "Leave custom_mpi_options out",
                )
        elif name not in known:
            yield _unknown(where, name, known)
    if type(section.get("enabled", True)) is not bool:
        yield OptionError(
            f"{where} has enabled={section['enabled']!r}",
            "a string would count as true",
            "Pass True or False",
        )
    try:
        DataParallel(**{name: section[name] for name in _OPTIONS & set(section)})
    except OptionError as error:
        yield error


def _unknown(where: str, key: object, valid: Collection[str]) -> OptionError:
    return OptionError(
        f"{where} has the key {key!r}", "no such key exists", closest(str(key), valid)
    )
