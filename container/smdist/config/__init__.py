# SPDX-License-Identifier: Apache-2.0
"""Configuration of a container, read once from SageMaker's files and the environment.

No other package of `smdist` reads environment variables. Three processes read their own part:

    launcher_config   the launcher: hosts, channels, hyperparameters, options
    guard_config      the guard, the small parent process of each rank
    rank_config       the engine inside a rank, with or without smdist's launcher

`environment_variables` reads single variables, for these three and for code that needs no more.

If a job has several instance groups, each group trains without the others. Ranks on different
kinds of machines would wait for the slowest kind at every step.
"""

from smdist.config.environment_variables import (
    STOP_SECONDS,
    read_base,
    read_fault_file,
    read_secret_variables,
    read_stop_seconds,
    read_timeline_variables,
    read_usd_per_hour,
    set_default,
)
from smdist.config.guard_config import GuardConfig, read_guard_config
from smdist.config.launcher_config import PORT, RuntimeConfig, read_runtime_config
from smdist.config.rank_config import MODEL_PARALLEL, RankConfig, read_rank_config, renumber_rank

__all__ = [
    "MODEL_PARALLEL",
    "PORT",
    "STOP_SECONDS",
    "GuardConfig",
    "RankConfig",
    "RuntimeConfig",
    "read_base",
    "read_fault_file",
    "read_guard_config",
    "read_rank_config",
    "read_runtime_config",
    "read_secret_variables",
    "read_stop_seconds",
    "read_timeline_variables",
    "read_usd_per_hour",
    "renumber_rank",
    "set_default",
]
