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
PARENT_KEYS: Final = frozenset(  # SageMaker SDK 2.257.7, fw_utils.py and estimator.py
    (
        "torch_distributed",
        "pytorchddp",
        "pytorchxla",
        "mpi",
        "parameter_server",
        "multi_worker_mirrored_strategy",
        "instance_groups",
    )
)
_STRATEGY: Final = "dataparallel"
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
    ours = [_build(part[_STRATEGY]) for key, part in value.items() if _is_ours(key, part)]
    return Distribution(ours=next(filter(None, ours), None), rest=rest)


def _is_ours(key: str, part: Any) -> bool:
    return key == OURS or (key == AWS and isinstance(part, dict) and _STRATEGY in part)


def _build(section: dict[str, Any]) -> DataParallel | None:
    options = {name: section[name] for name in _OPTIONS & set(section)}
    return DataParallel(**options) if section.get("enabled", True) else None


def _faults(value: dict[str, Any]) -> Iterator[OptionError]:
    valid = {OURS, AWS, *PARENT_KEYS}
    for key in value:
        if key not in valid:
            yield _unknown("distribution", key, valid)
    sections = [key for key, part in value.items() if _is_ours(key, part)]
    for key in sections:
        yield from _section_faults(key, value[key])
    if len(sections) > 1:
        yield OptionError(
            f"distribution has both {OURS!r} and {AWS!r}",
            "both ask for the same data parallelism",
            f"Keep {OURS!r}",
        )


def _section_faults(key: str, part: Any) -> Iterator[OptionError]:
    where = f"distribution[{key!r}]"
    if not isinstance(part, dict) or not isinstance(part.get(_STRATEGY, {}), dict):
        yield OptionError(
            f"{where} is {part!r}",
            "a strategy is a dict of dicts",
            f"Pass {{{key!r}: {{{_STRATEGY!r}: {{'enabled': True}}}}}}",
        )
        return
    for name in part:
        if name != _STRATEGY:
            yield _unknown(where, name, {_STRATEGY})
    if not part:
        yield _unknown(where, "", {_STRATEGY})
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
