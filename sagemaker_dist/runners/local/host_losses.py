# SPDX-License-Identifier: Apache-2.0
"""Losses of hosts in a local job: which of them the job survives, by its option elastic_min."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sagemaker_dist.runners.local.opt_ml_tree import MAX_CHARACTERS, Failure, root_cause

# kinds of smdist.elastic.ElasticError that say why the hosts that are left cannot go on
_KINDS: Final = frozenset({"too_few_hosts", "no_majority", "finished"})


@dataclass(slots=True)
class HostLosses:
    """Hosts that have failed while others went on. Thread safety: none.

    Attributes:
        least: The option elastic_min; None if every loss ends the job.
        failures: Failures that the job has survived so far, in their order.
    """

    least: int | None
    failures: list[Failure] = field(default_factory=list)

    def survives(self, failure: Failure, num_left: int) -> bool:
        """Return True, and keep the failure, if the hosts that are left may go on.

        `num_left` is the number of hosts that still run or have succeeded.
        """
        if self.least is None or num_left < self.least:
            return False
        self.failures.append(failure)
        return True

    def cause(self, failures: Iterable[Failure]) -> Failure:
        """Return the cause of the end of a job that `failures` have ended, after these losses.

        If the ranks that were left have reported why they could not go on, it is their report.
        """
        every = [*self.failures, *failures]
        if self.least is None:
            return root_cause(every)
        reported = (each for each in every if each.fields.get("kind") in _KINDS)
        found = next(reported, None)
        if found is not None:
            return found
        cause = root_cause(every)
        end = f". Fewer hosts than elastic_min={self.least} were left."
        reason = cause.reason.rstrip(".")[: MAX_CHARACTERS - len(end)]
        return replace(cause, text=reason + end)
