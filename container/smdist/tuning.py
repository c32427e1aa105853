# SPDX-License-Identifier: Apache-2.0
"""Engine settings for dividing its work, as environment variables from the launcher or the user.

    DataParallel          environment                    such as
    lanes                 SMDIST_LANES                   4
    chunk_bytes           SMDIST_CHUNK_BYTES             262144
    one_shot_bytes        SMDIST_ONE_SHOT_BYTES          0
    single_owner_bytes    SMDIST_SINGLE_OWNER_BYTES      65536
    arriving_bytes        SMDIST_ARRIVING_BYTES          229376
    shard_weights         SMDIST_SHARD_WEIGHTS           1,2,1

A setting that is not set is measured at the start of the job, except that shards are equal.
These settings are never measured:

    fusion_bytes          SMDIST_FUSION_BYTES            33554432
    timeout_seconds       SMDIST_TIMEOUT_SECONDS         1800
    start_timeout_seconds SMDIST_START_TIMEOUT_SECONDS   600

`smdist.config` reads them; their ranges are checked here, together with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sagemaker_dist.contract import WEIGHTS, DataParallel, range_faults
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """Options of `DataParallel` that the engine can choose itself; None leaves it open."""

    lanes: int | None = None
    chunk_bytes: int | None = None
    one_shot_bytes: int | None = None
    single_owner_bytes: int | None = None
    arriving_bytes: int | None = None
    shard_weights: tuple[int, ...] | None = None


_NAMES: Final = tuple(field.name for field in fields(TuningConfig))
# options that are never measured
_LIMITS: Final = ("fusion_bytes", "timeout_seconds", "start_timeout_seconds")


def read_tuning(environ: Mapping[str, str]) -> TuningConfig:
    """Read the settings from the environment; an empty variable counts as not set.

    Raises:
        OptionError: A value is outside its option's range. All faults are reported, including
            those of options that are never measured.
    """
    raise_all(option_faults(environ))
    texts = {name: environ.get(variable_of(name)) for name in _NAMES}
    return TuningConfig(**{name: _value(name, text) for name, text in texts.items() if text})


def option_faults(environ: Mapping[str, str]) -> Iterator[OptionError]:
    """Yield the faults of all variables that stand for options of `DataParallel`."""
    for name in (*_NAMES, *_LIMITS):
        if text := environ.get(variable_of(name)):
            label = f"the environment variable {variable_of(name)}"
            yield from range_faults(name, _value(name, text), label)


def write_tuning(options: DataParallel) -> dict[str, str]:
    """Return the environment variables that pass the options to `read_tuning`; None is left out."""
    values = {name: getattr(options, name) for name in _NAMES}
    return {variable_of(name): _text(value) for name, value in values.items() if value is not None}


def variable_of(option: str) -> str:
    """Return the name of the environment variable that carries the option."""
    return f"SMDIST_{option.upper()}"


TUNING_VARIABLES: Final = tuple(map(variable_of, _NAMES))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(option: str, text: str) -> Any:
    if option == WEIGHTS:
        return tuple(_integer(part) for part in text.split(","))
    return _integer(text)


def _integer(text: str) -> int | str:
    """Return the text as an integer, or unchanged for the error if it is not one."""
    try:
        return int(text)
    except ValueError:
        return text
