# SPDX-License-Identifier: Apache-2.0
"""How the engine divides its work, as the launcher tells the ranks or a user sets by hand.

    DataParallel          environment                    such as
    lanes                 SMDIST_LANES                   4
    chunk_bytes           SMDIST_CHUNK_BYTES             262144
    one_shot_bytes        SMDIST_ONE_SHOT_BYTES          0
    single_owner_bytes    SMDIST_SINGLE_OWNER_BYTES      65536
    arriving_bytes        SMDIST_ARRIVING_BYTES          229376
    shard_weights         SMDIST_SHARD_WEIGHTS           1,2,1

What is not set is measured at the start of the job, and shards are equal. Nothing measures

    fusion_bytes          SMDIST_FUSION_BYTES            33554432
    timeout_seconds       SMDIST_TIMEOUT_SECONDS         1800
    start_timeout_seconds SMDIST_START_TIMEOUT_SECONDS   600

which `smdist.config` reads; their ranges are checked together with the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sagemaker_dist.contract import WEIGHTS, DataParallel, range_faults
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """The options of `DataParallel` that the engine may also find out by itself."""

    lanes: int | None = None
    chunk_bytes: int | None = None
    one_shot_bytes: int | None = None
    single_owner_bytes: int | None = None
    arriving_bytes: int | None = None
    shard_weights: tuple[int, ...] | None = None


_NAMES: Final = tuple(field.name for field in fields(TuningConfig))
_LIMITS: Final = ("fusion_bytes", "timeout_seconds", "start_timeout_seconds")  # never measured


def read_tuning(environ: Mapping[str, str]) -> TuningConfig:
    """Read the variables; one that is empty is not set.

    Raises:
        OptionError: A value is outside its option's range; all faults are reported, those of the
            options that nothing measures, too.
    """
    raise_all(option_faults(environ))
    texts = {name: environ.get(variable_of(name)) for name in _NAMES}
    return TuningConfig(**{name: _value(name, text) for name, text in texts.items() if text})


def option_faults(environ: Mapping[str, str]) -> Iterator[OptionError]:
    """What is out of range, of all variables that stand for options of `DataParallel`."""
    for name in (*_NAMES, *_LIMITS):
        if text := environ.get(variable_of(name)):
            label = f"the environment variable {variable_of(name)}"
            yield from range_faults(name, _value(name, text), label)


def write_tuning(options: DataParallel) -> dict[str, str]:
    """The variables of what is set, for `read_tuning`."""
    values = {name: getattr(options, name) for name in _NAMES}
    return {variable_of(name): _text(value) for name, value in values.items() if value is not None}


def variable_of(option: str) -> str:
    """The environment variable that carries the option."""
    return f"SMDIST_{option.upper()}"


TUNING_VARIABLES: Final = tuple(map(variable_of, _NAMES))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(option: str, text: str) -> Any:
    if option == WEIGHTS:
        return tuple(_integer(part) for part in text.split(","))
    return _integer(text)


def _integer(text: str) -> int | str:
    """What is no integer stays as it is, for the message."""
    try:
        return int(text)
    except ValueError:
        return text
