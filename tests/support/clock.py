# SPDX-License-Identifier: Apache-2.0
"""Second pipeline simulator, slow and simple, to check the product's simulator against.

It simulates points in time, busy ranks, and messages, one for each value, that wait in a queue,
leave, travel and arrive. It shares no code with the product.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush
from itertools import count

from smdist.modelparallel.core.schedule.actions import Do


class Clock:
    """Queue of calls at points in time."""

    def __init__(self):
        self.now = 0
        self._coming, self._number = [], count()

    def at(self, moment, do, *arguments):
        heappush(self._coming, (moment, next(self._number), do, arguments))

    def run(self):
        while self._coming:
            self.now, _, do, arguments = heappop(self._coming)
            do(*arguments)


class Pipeline:
    """Ranks that work by a clock; `ends` has the end time of each action."""

    def __init__(self, schedule, stages, edges, link):
        self.schedule, self.stages, self.edges, self.link = schedule, stages, edges, link
        self.clock, self.ends = Clock(), {}
        self.left = [deque(order) for order in schedule.orders]
        self.at_work = [False] * schedule.num_ranks
        self.queues, self.leaving, self.heard = {}, set(), Counter()
        for rank in range(schedule.num_ranks):
            self.begin(rank)
        self.clock.run()

    def begin(self, rank):
        if self.at_work[rank] or not self.left[rank]:
            return
        action = self.left[rank][0]
        if self.heard[_name(action)] == self._wanted(action):
            self.left[rank].popleft()
            self.at_work[rank] = True
            self.clock.at(self.clock.now + self._seconds(action), self.end, rank, action)

    def end(self, rank, action):
        self.ends[action], self.at_work[rank] = self.clock.now, False
        for name, num_bytes in self._messages(action):
            other = self.schedule.rank_of[name[1]]
            if other == rank:
                self.hear(name)
            else:
                self.queues.setdefault((rank, other), deque()).append((name, num_bytes))
                self.leave(rank, other)
        self.begin(rank)

    def leave(self, *pair):
        if pair not in self.leaving and self.queues[pair]:
            self.leaving.add(pair)
            name, num_bytes = self.queues[pair].popleft()
            moment = self.clock.now + num_bytes / self.link(*pair).bytes_per_second
            self.clock.at(moment, self.has_left, pair, name)

    def has_left(self, pair, name):
        self.leaving.remove(pair)
        self.clock.at(self.clock.now + self.link(*pair).latency_seconds, self.hear, name)
        self.leave(*pair)

    def hear(self, name):
        self.heard[name] += 1
        self.begin(self.schedule.rank_of[name[1]])

    def _messages(self, action):
        """Yield the messages, with their bytes, that are sent when an action has ended."""
        do, stage, microbatch = action.do, action.stage, action.microbatch
        if do is Do.F:
            yield ("B", stage, microbatch), 0
            for edge in self.edges:
                if edge.source == stage:
                    yield ("F", edge.target, microbatch), edge.num_bytes
        if do in (Do.B, Do.I):
            for edge in self.edges:
                if edge.target == stage and edge.has_gradient:
                    yield ("B", edge.source, microbatch), edge.num_bytes
        if do is Do.I:
            yield ("W", stage, microbatch), 0

    def _wanted(self, action):
        """Return the number of messages that an action waits for."""
        if action.do is Do.F:
            return sum(edge.target == action.stage for edge in self.edges)
        if action.do is Do.W:
            return 1
        return 1 + sum(edge.source == action.stage and edge.has_gradient for edge in self.edges)

    def _seconds(self, action):
        cost = self.stages[action.stage]
        return {
            Do.F: cost.forward_seconds,
            Do.I: cost.input_gradient_seconds,
            Do.W: cost.weight_gradient_seconds,
            Do.B: cost.input_gradient_seconds + cost.weight_gradient_seconds,
        }[action.do]


def _name(action):
    return "B" if action.do is Do.I else action.do.value, action.stage, action.microbatch
