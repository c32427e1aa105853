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
    silence_seconds       SMDIST_SILENCE_SECONDS         120
    max_restarts          SMDIST_MAX_RESTARTS            3

This module checks the ranges of all these options. It reads the first six; `smdist.config` reads
the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.contract.option_variables import (
    option_text,
    option_value,
    value_faults,
    variable_of,
)
from sagemaker_dist.errors import raise_all


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


def read_tuning(environ: Mapping[str, str]) -> TuningConfig:
    """Read the engine's options from the environment; an empty variable counts as not set.

    Raises:
        OptionError: A value is outside its option's range. The faults of all variables of this
            module are reported together.
    """
    raise_all(value_faults(environ))
    texts = {name: environ.get(variable_of(name)) for name in _NAMES}
    return TuningConfig(**{name: option_value(name, text) for name, text in texts.items() if text})


def write_tuning(options: DataParallel) -> dict[str, str]:
    """Return the environment variables, by name, from which `read_tuning` reads the options.

    An option that is None gets no variable.
    """
    values = {name: getattr(options, name) for name in _NAMES}
    return {
        variable_of(name): option_text(value) for name, value in values.items() if value is not None
    }
