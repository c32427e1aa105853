# SPDX-License-Identifier: Apache-2.0
"""Comparison of the ranks' options when a session starts; all ranks raise the same error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError


class DisagreementError(OptionError):
    """Error raised because ranks are about to do different things, or another rank has failed.

    Attributes:
        rank: World rank that failed, or that differs from the others; None if no single rank is
            to blame.
    """

    own_fields = ("rank",)
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options and host of one rank, which all ranks exchange.

    Attributes:
        options: Options of the rank; None if reading them failed. The path of the plan file, in
            `options.plan`, may differ between hosts.
        plan: Digest of the contents of the plan file; "" without a plan.
        fault: Text of the rank's error; "" if there is none.
        host: Name of the host, equal on all ranks of one host.
        local_rank: Number of the rank on its host, if a launcher set it; otherwise None.
    """

    options: ModelParallel | None
    plan: str = ""
    fault: str = ""
    host: str = ""
    local_rank: int | None = None


def check(every: Sequence[RankOptions]) -> None:
    """Check that no rank has an error, and that all ranks have the same options.

    Args:
        every: Options and hosts of all ranks, by rank.

    Raises:
        DisagreementError: A rank has an error or other options; the error names the first such
            rank.
    """
    for rank, each in enumerate(every):
        if each.fault:
            raise DisagreementError(
                f"smp.init failed on rank {rank}",
                each.fault.rstrip("."),
                "Fix the configuration of that rank",
                kind="failed",
                rank=rank,
            )
    for rank, each in enumerate(every):
        differences = dict(_differences(every[0], each))
        if differences:
            raise DisagreementError(
                f"smp.init got different configurations on ranks 0 and {rank}",
                "; ".join(differences.values()),
                "Pass the same configuration on every rank",
                about=("config", *differences),
                kind="difference",
                rank=rank,
            )


def place(every: Sequence[RankOptions], rank: int) -> tuple[int, int]:
    """Return the number of a rank on its host, and the number of ranks on that host.

    Args:
        every: Options and hosts of all ranks, by rank.
        rank: World rank whose place is returned.
    """
    host = every[rank].host
    there = [at for at, each in enumerate(every) if each.host == host]
    given = every[rank].local_rank
    return (there.index(rank) if given is None else given), len(there)


def check_same(running: ModelParallel, options: ModelParallel) -> None:
    """Check that a further call of smp.init has the options of the first call.

    Args:
        running: Options of the running session.
        options: Options of the further call.

    Raises:
        OptionError: Options differ; the error names them.
    """
    differences = dict(_differences(RankOptions(options=running), RankOptions(options=options)))
    if running != options:
        raise OptionError(
            "smp.init was called again with another configuration"
            f" ({'; '.join(differences.values())})",
            "a process has one session, and its process groups are made already",
            "Call smp.init once, or again with the same configuration",
            about=("config", *differences),
            kind="conflict",
        )


def _differences(first: RankOptions, other: RankOptions) -> Iterator[tuple[str, str]]:
    """Yield the name of each option in which two ranks differ, and a text.

    The text is such as "microbatches is 4 and 8".
    """
    for each in fields(ModelParallel):
        here, there = getattr(first.options, each.name), getattr(other.options, each.name)
        is_compared = each.name != "plan" or None in (here, there) or not (first.plan or other.plan)
        if here != there and is_compared:
            yield each.name, f"{each.name} is {here!r} and {there!r}"
    if first.plan != other.plan and first.plan and other.plan:
        yield "plan", "the files of the plan have different contents"
