# SPDX-License-Identifier: Apache-2.0
"""How a job finds out what suits its ranks and its network, and what it says of it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.rendezvous.engine import Engine, EngineModule, Findings
from smdist.tuning import TuningConfig, variable_of


def fixed_by(tuning: TuningConfig, hosts: list[int], module: EngineModule[Any]) -> Any:
    """What is not to be measured, as the engine takes it.

    Raises:
        OptionError: There are not as many shard weights as hosts.
    """
    fixed = module.Fixed()
    for name, value in asdict(tuning).items():
        if name != "shard_weights":
            setattr(fixed, name, value)
    fixed.shard_weights = _by_rank(tuning.shard_weights, hosts)
    return fixed


def tune(engine: Engine, rank: int, hosts: list[int], fixed: Any, seconds: float) -> None:
    """Time what is not fixed, on all ranks at once; rank 0 prints what came out."""
    findings = engine.probe(rank, hosts, fixed, seconds)
    if rank == 0 and findings.seconds > 0:
        sys.stderr.write(f"smdist: {_summary(findings, hosts)}\n")
        sys.stderr.flush()


def check_agreement(settings: list[dict[str, object]], names: list[str]) -> None:
    """All ranks must have been told the same.

    Raises:
        OptionError: Two have not.
    """
    for other, name in zip(settings, names, strict=True):
        for option, value in other.items():
            if settings[0][option] != value:
                raise OptionError(
                    f"{variable_of(option)} is {value} on {name}"
                    f" and {settings[0][option]} on {names[0]}",
                    "all ranks of a job divide their work in the same way",
                    "Set it through DataParallel(...), or to the same value everywhere",
                )


def _by_rank(weights: tuple[int, ...] | None, hosts: list[int]) -> list[int]:
    if weights is None:
        return []
    count = len(set(hosts))
    require(
        len(weights) == count,
        what=f"shard_weights has {len(weights)} values",
        why=f"the job runs on {count} hosts, and each has one",
        mend="Give one weight per host, or none",
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
