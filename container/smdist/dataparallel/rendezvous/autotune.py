# SPDX-License-Identifier: Apache-2.0
"""Tuning of the engine for a job's ranks and network: measurement, agreement and summary line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.dataparallel.rendezvous.engine_interface import Engine, EngineModule, Findings
from smdist.tuning import TuningConfig, variable_of


def fixed_by(tuning: TuningConfig, hosts: list[int], module: EngineModule[Any]) -> Any:
    """Return the settings that must not be measured, in the engine's own type.

    Raises:
        OptionError: The number of shard weights is not the number of hosts.
    """
    fixed = module.Fixed()
    for name, value in asdict(tuning).items():
        if name != "shard_weights":
            setattr(fixed, name, value)
    fixed.shard_weights = _by_rank(tuning.shard_weights, hosts)
    return fixed


def tune(engine: Engine, rank: int, hosts: list[int], fixed: Any, seconds: float) -> None:
    """Measure the settings that are not fixed, on all ranks at once; rank 0 prints the result."""
    findings = engine.probe(rank, hosts, fixed, seconds)
    if rank == 0 and findings.seconds > 0:
        sys.stderr.write(f"smdist: {_summary(findings, hosts)}\n")
        sys.stderr.flush()


def check_agreement(settings: list[dict[str, object]], names: list[str]) -> None:
    """Check that all ranks have the same options.

    Raises:
        OptionError: Options differ. Each such option names the first rank that differs
            from rank 0.
    """
    raise_all(
        fault
        for option in settings[0]
        for fault in islice(_disagreements(option, settings, names), 1)
    )


def _disagreements(
    option: str, settings: list[dict[str, object]], names: list[str]
) -> Iterator[OptionError]:
    told = [_told(each[option]) for each in settings]
    for value, name in zip(told, names, strict=True):
        if value != told[0]:
            yield OptionError(
                f"{variable_of(option)} is {value} on {name} and {told[0]} on {names[0]}",
                "all ranks of a job divide their work in the same way",
                "Set it to the same value everywhere; DataParallel(...) does so for a job",
            )


def _told(value: object) -> str:
    """Return the value as the environment variable spells it."""
    if value is None:
        return "not set"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _by_rank(weights: tuple[int, ...] | None, hosts: list[int]) -> list[int]:
    if weights is None:
        return []
    count = len(set(hosts))
    require(
        len(weights) == count,
        what=f"shard_weights has {len(weights)} values",
        why=f"the job runs on {count} host{'s' * (count > 1)}, and each has one",
        hint="Give one weight per host, or none",
    )
    return [weights[host] for host in hosts]


def _summary(findings: Findings, hosts: list[int]) -> str:
    tuning = findings.tuning
    count = len(set(hosts))
    is_limited = count > 1 and tuning.arriving_bytes > 0
    arriving = f"{_size(tuning.arriving_bytes)} arriving at most, " if is_limited else ""
    lanes = f"{tuning.lanes} lane{'s' * (tuning.lanes > 1)}, "
    return (
        f"{len(hosts)} ranks on {count} host{'s' * (count > 1)}: "
        f"{lanes}chunks of {_size(tuning.chunk_bytes)}, {arriving}"
        f"one step up to {_size(tuning.one_shot_bytes)}, "
        f"one owner up to {_size(tuning.single_owner_bytes)}"
        f" (found in {findings.seconds:.2f} s; {findings.latency * 1e3:.2f} ms latency,"
        f" {findings.bandwidth / 1e9:.2f} GB/s)"
    )


def _size(count: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"
