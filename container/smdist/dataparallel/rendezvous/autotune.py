# SPDX-License-Identifier: Apache-2.0
"""Tuning of the engine's settings at the start of a job.

If an environment variable sets a setting, the engine uses that value. For each other setting the
engine measures several values and uses the fastest. This module also checks that all ranks have
the same options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

from sagemaker_dist.contract.option_variables import variable_of
from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.dataparallel.rendezvous.engine_interface import Engine, EngineModule, Findings
from smdist.tuning import TuningConfig


def fixed_by(tuning: TuningConfig, hosts: list[int], module: EngineModule[Any]) -> Any:
    """Return the user's settings as an object of the engine's class `Fixed`.

    `tuning.shard_weights` has one weight for each host. The result has one weight for each rank:
    the weight of the rank's host.

    Args:
        tuning: Settings from environment variables; None for a setting that is not set.
        hosts: Host number of each rank.
        module: smdist's compiled module for torch or for TensorFlow.

    Raises:
        OptionError: The number of weights is not the number of hosts.
    """
    fixed = module.Fixed()
    for name, value in asdict(tuning).items():
        if name != "shard_weights":
            setattr(fixed, name, value)
    fixed.shard_weights = _by_rank(tuning.shard_weights, hosts)
    return fixed


def tune(engine: Engine, rank: int, hosts: list[int], fixed: Any, seconds: float) -> None:
    """Choose the engine's settings by measurements; print the chosen values on rank 0.

    All ranks must call this function together.

    Args:
        engine: This rank's connected engine. It uses the chosen settings from now on.
        rank: This rank's number.
        hosts: Host number of each rank.
        fixed: Object of the engine's class `Fixed` with the settings of the user. Only settings
            that are None in it are measured.
        seconds: Seconds to wait for the other ranks.
    """
    findings = engine.probe(rank, hosts, fixed, seconds)
    if rank == 0 and findings.seconds > 0:
        sys.stderr.write(f"smdist: {_summary(findings, hosts)}\n")
        sys.stderr.flush()


def check_agreement(settings: list[dict[str, object]], names: list[str]) -> None:
    """Check that all ranks have the same options.

    Args:
        settings: Options of each rank, by name.
        names: Name of each rank in messages.

    Raises:
        OptionError: An option has different values. For each such option the error names rank 0
            and the first rank with another value.
    """
    raise_all(
        fault
        for option in settings[0]
        for fault in islice(_disagreements(option, settings, names), 1)
    )


def _disagreements(
    option: str, settings: list[dict[str, object]], names: list[str]
) -> Iterator[OptionError]:
    values = [_text(each[option]) for each in settings]
    for value, name in zip(values, names, strict=True):
        if value != values[0]:
            yield OptionError(
                f"{variable_of(option)} is {value} on {name} and {values[0]} on {names[0]}",
                "all ranks of a job must have the same value of this option",
                f"Set {variable_of(option)} to the same value on all ranks, or pass {option} to"
                " DataParallel(...), which sets it on all ranks",
                about=variable_of(option),
                kind="conflict",
            )


def _text(value: object) -> str:
    """Return an option's value as its environment variable contains it, or "not set" for None."""
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
        why=f"the job runs on {count} host{'s' * (count > 1)}, and each host needs one weight",
        hint="Pass one weight per host, or leave shard_weights out",
        about="shard_weights",
    )
    return [weights[host] for host in hosts]


def _summary(findings: Findings, hosts: list[int]) -> str:
    tuning = findings.tuning
    count = len(set(hosts))
    is_limited = count > 1 and tuning.arriving_bytes > 0
    arriving = f"at most {_size(tuning.arriving_bytes)} in flight, " if is_limited else ""
    lanes = f"{tuning.lanes} lane{'s' * (tuning.lanes > 1)}, "
    return (
        f"{len(hosts)} ranks on {count} host{'s' * (count > 1)}: "
        f"{lanes}chunks of {_size(tuning.chunk_bytes)}, {arriving}"
        f"one-shot all-reduces up to {_size(tuning.one_shot_bytes)}, "
        f"single-owner all-reduces up to {_size(tuning.single_owner_bytes)}"
        f" (measured in {findings.seconds:.2f} s; {findings.latency * 1e3:.2f} ms latency,"
        f" {findings.bandwidth / 1e9:.2f} GB/s)"
    )


def _size(count: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"
