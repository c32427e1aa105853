# SPDX-License-Identifier: Apache-2.0
"""Decision on which hosts of an elastic job go on; pure, without sockets and clocks.

Each host has a `Membership`. The hosts of a generation train together; generation 0 has all hosts
of the job. When a host is lost, the ranks of the others stop at an error, and their hosts become
ready for the next generation. The leader, the lowest host that is not lost, decides once all hosts
that are not lost are ready:

    host 0   lost
    host 1   ready ──▶ leader: generation 1 has the hosts 1 and 2
    host 2   ready ──▶ host 1

A host is lost for certain if its kernel has closed the connection, or if its launcher has reported
the end of its ranks. A host that is only silent may train on with others, on the other side of a
broken network. If hosts are silent, the hosts that are left therefore go on only if they are more
than half of the last generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TOO_FEW = "too_few_hosts"
NO_MAJORITY = "no_majority"
FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Loss of one host.

    Attributes:
        host: Number of the host in the job, from 0.
        why: Reason, as the end of a sentence that begins with the host's name.
        is_certain: False if the host is only silent, so that it may still train.
    """

    host: int
    why: str
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """Next generation.

    Attributes:
        generation: Number of the generation, which grows by at least 1.
        members: Numbers of its hosts in the job, ascending. The first one is its leader.
    """

    generation: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReformRefusal:
    """Reason why no generation can follow.

    Attributes:
        kind: TOO_FEW (fewer hosts than the least number are left), NO_MAJORITY (hosts are silent,
            and those left are not more than half), or FINISHED (a host's ranks have already ended
            with success).
        hosts: The hosts that are left if `kind` is TOO_FEW or NO_MAJORITY; else those that have
            finished.
    """

    kind: str
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """Instruction to send to `leader` that this host is ready, and to wait for its decision."""

    leader: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Instruction to the leader to wait for `hosts`, which are neither ready nor lost."""

    hosts: tuple[int, ...]


class Membership:
    """State of the hosts of one job, as one of them knows it. Thread safety: none.

    Args:
        me: Number of this host in the job, from 0.
        num_hosts: Number of hosts of the job.
        least: Least number of hosts of a generation.

    Attributes:
        generation: Number of the last generation that this host knows.
        members: Numbers of its hosts, ascending.
        losses: Hosts that were lost, in the order of their losses.
        finished: Hosts whose ranks have all ended with success.
    """

    def __init__(self, me: int, num_hosts: int, least: int) -> None:
        self.me = me
        self.least = least
        self.generation = 0
        self.members = tuple(range(num_hosts))
        self.losses: dict[int, Loss] = {}
        self.finished: set[int] = set()
        self._ready: set[int] = set()

    @property
    def alive(self) -> tuple[int, ...]:
        """Return the members of the last generation that are not lost."""
        return tuple(host for host in self.members if host not in self.losses)

    @property
    def is_whole(self) -> bool:
        """True if no member of the last generation is lost."""
        return len(self.alive) == len(self.members)

    @property
    def is_ready(self) -> bool:
        """True if this host waits for the next generation."""
        return self.me in self._ready

    def lose(self, loss: Loss) -> bool:
        """Record that a host was lost; return False if that is known already.

        A loss that was uncertain becomes certain, if it is reported again so.
        """
        known = self.losses.get(loss.host)
        if known is not None and (known.is_certain or not loss.is_certain):
            return False
        self.losses[loss.host] = loss
        self._ready.discard(loss.host)
        return True

    def finish(self, host: int) -> None:
        """Record that all ranks of a host have ended with success."""
        self.finished.add(host)

    def set_ready(self, host: int, generation: int, members: Iterable[int]) -> None:
        """Record that a host is ready, and the last generation that it knows."""
        self._learn(generation, members)
        if host not in self.losses:
            self._ready.add(host)

    def adopt(self, decision: Decision) -> bool:
        """Make a decision the last generation; return False if a newer one is known."""
        if decision.generation <= self.generation:
            return False
        self._learn(decision.generation, decision.members)
        self._ready.discard(self.me)
        return True

    def next_step(self) -> Decision | ReformRefusal | Follow | Wait | None:
        """Return what this host does next; None if it is not ready."""
        if not self.is_ready:
            return None
        alive = self.alive
        if len(alive) < self.least:
            return ReformRefusal(TOO_FEW, alive)
        if finished := tuple(host for host in alive if host in self.finished):
            return ReformRefusal(FINISHED, finished)
        leader = alive[0]
        if leader != self.me:
            return Follow(leader)
        if missing := tuple(host for host in alive if host not in self._ready):
            return Wait(missing)
        if self._has_silent() and 2 * len(alive) <= len(self.members):
            return ReformRefusal(NO_MAJORITY, alive)
        decision = Decision(self.generation + 1, alive)
        self._ready.difference_update(alive)
        self._learn(decision.generation, alive)
        return decision

    def _has_silent(self) -> bool:
        lost = (self.losses[host] for host in self.members if host in self.losses)
        return any(not loss.is_certain for loss in lost)

    def _learn(self, generation: int, members: Iterable[int]) -> None:
        if generation > self.generation:
            self.generation, self.members = generation, tuple(members)
