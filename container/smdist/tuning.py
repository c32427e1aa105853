# SPDX-License-Identifier: Apache-2.0
"""Environment variables for options of `DataParallel`, set by the launcher or by the user.

    DataParallel          environment                    example
    lanes                 SMDIST_LANES                   4
    chunk_bytes           SMDIST_CHUNK_BYTES             262144
    one_shot_bytes        SMDIST_ONE_SHOT_BYTES          0
    single_owner_bytes    SMDIST_SINGLE_OWNER_BYTES      65536
    arriving_bytes        SMDIST_ARRIVING_BYTES          229376
    shard_weights         SMDIST_SHARD_WEIGHTS           1,2,1

If shard_weights is not set, all shards are equal. For each of the other options that is not set,
the engine chooses a value by measurements at the start of the job. The following options have fixed
defaults:

    fusion_bytes          SMDIST_FUSION_BYTES            33554432
    timeout_seconds       SMDIST_TIMEOUT_SECONDS         1800
    start_timeout_seconds SMDIST_START_TIMEOUT_SECONDS   600
    integrity             SMDIST_INTEGRITY               crc32c
    encrypt               SMDIST_ENCRYPT                 1
    gpu_collectives       SMDIST_GPU_COLLECTIVES         staged

This module checks the ranges of all these options. It reads the first six; `smdist.config` reads
the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sagemaker_dist.contract import (
    ENCRYPT,
    GPU_COLLECTIVES,
    INTEGRITY,
    WEIGHTS,
    DataParallel,
    range_faults,
)
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """Options of `sagemaker_dist.DataParallel` for how the all-reduce engine divides its work.

    Each attribute has the meaning and the unit of the option of this name. None lets the engine
    choose a value; for `shard_weights`, None makes all shards equal.
    """

    lanes: int | None = None
    chunk_bytes: int | None = None
    one_shot_bytes: int | None = None
    single_owner_bytes: int | None = None
    arriving_bytes: int | None = None
    shard_weights: tuple[int, ...] | None = None


_NAMES: Final = tuple(field.name for field in fields(TuningConfig))
# options with fixed defaults, which the engine does not measure
_FIXED: Final = (
    "fusion_bytes",
    "timeout_seconds",
    "start_timeout_seconds",
    INTEGRITY,
    ENCRYPT,
    GPU_COLLECTIVES,
)


def read_tuning(environ: Mapping[str, str]) -> TuningConfig:
    """Read the engine's options from the environment; an empty variable counts as not set.

    Raises:
        OptionError: A value is outside its option's range. The faults of all variables of this
            module are reported together.
    """
    raise_all(option_faults(environ))
    texts = {name: environ.get(variable_of(name)) for name in _NAMES}
    return TuningConfig(**{name: _value(name, text) for name, text in texts.items() if text})


def option_faults(environ: Mapping[str, str]) -> Iterator[OptionError]:
    """Yield a fault for each variable in `environ` whose value is outside its option's range."""
    for name in (*_NAMES, *_FIXED):
        variable = variable_of(name)
        if text := environ.get(variable):
            label = f"the environment variable {variable}"
            for fault in range_faults(name, _value(name, text), label):
                fault.about = variable, *fault.about[1:]
                yield fault


def write_tuning(options: DataParallel) -> dict[str, str]:
    """Return the environment variables, by name, from which `read_tuning` reads the options.

    An option that is None gets no variable.
    """
    values = {name: getattr(options, name) for name in _NAMES}
    return {variable_of(name): _text(value) for name, value in values.items() if value is not None}


def variable_of(option: str) -> str:
    """Return the name of an option's environment variable: SMDIST_LANES for "lanes"."""
    return f"SMDIST_{option.upper()}"


TUNING_VARIABLES: Final = tuple(map(variable_of, _NAMES))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(option: str, text: str) -> Any:
    if option == WEIGHTS:
        return tuple(_integer(part) for part in text.split(","))
    if option in (INTEGRITY, GPU_COLLECTIVES):
        return text
    if option == ENCRYPT:
        return read_flag(text)
    return _integer(text)


def read_flag(text: str) -> bool | str:
    """Return True for "1" and False for "0", or the text, which the range check reports."""
    return {"1": True, "0": False}.get(text, text)


def _integer(text: str) -> int | str:
    """Return the integer in the text, or the text itself, which the range check then reports."""
    try:
        return int(text)
    except ValueError:
        return text
