# SPDX-License-Identifier: Apache-2.0
"""State of a local job, as state.json in the job's folder has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import time
from typing import Any

from sagemaker_dist.runners.protocol import TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of a job; times are in seconds since 1970.

    Attributes:
        status: TrainingJobStatus of DescribeTrainingJob, such as "InProgress".
        secondary: SecondaryStatus, such as "Training".
        created: Time when the job was created.
        started: Time when the hosts began to train, or None.
        ended: Time when the job ended, or None.
        modified: Time of the last change.
        reason: FailureReason, or None.
        cause: Fields of the failure that `reason` describes, for programs; empty if there are none.
        restarts: Fields of the failures after which all ranks were started again, and of the one
            that ended the job.
        losses: Hosts that an elastic job has lost, each with the reason: "algo-2: ...".
        lost_log_bytes: Bytes of the hosts' output that all.log lacks, because the disk was full or
            a host wrote more than its log may have.
        transitions: Every secondary status with the time at which it began.
    """

    status: str = "InProgress"
    secondary: str = "Starting"
    created: float = field(default_factory=time)
    started: float | None = None
    ended: float | None = None
    modified: float = field(default_factory=time)
    reason: str | None = None
    cause: Mapping[str, Any] = field(default_factory=dict)
    restarts: tuple[Mapping[str, Any], ...] = ()
    losses: tuple[str, ...] = ()
    lost_log_bytes: int = 0
    transitions: tuple[tuple[str, float], ...] = ()

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> State:
        """Create a State from the values in state.json."""
        steps = tuple(tuple(step) for step in document["transitions"])
        restarts = tuple(document.get("restarts", ()))
        losses = tuple(document.get("losses", ()))
        parts = {"restarts": restarts, "losses": losses, "transitions": steps}
        return cls(**{**document, **parts})

    @property
    def is_terminal(self) -> bool:
        """Return whether the job has ended."""
        return self.status in TERMINAL

    def lose(self, loss: str) -> State:
        """Return a copy of the state with one more lost host, such as "algo-2: ..."."""
        return replace(self, losses=(*self.losses, loss), modified=time())

    def become(
        self,
        status: str,
        secondary: str,
        reason: str | None = None,
        cause: Mapping[str, Any] | None = None,
    ) -> State:
        """Return a copy of the state with a new status, which begins at the current time.

        Args:
            status: TrainingJobStatus, such as "InProgress".
            secondary: SecondaryStatus, such as "Training".
            reason: FailureReason; None keeps the one of this state.
            cause: Fields of that failure; None keeps those of this state.
        """
        now = time()
        return replace(
            self,
            status=status,
            secondary=secondary,
            reason=reason or self.reason,
            cause=cause or self.cause,
            started=self.started or (now if secondary == "Training" else None),
            ended=now if status in TERMINAL else None,
            modified=now,
            transitions=(*self.transitions, (secondary, now)),
        )
