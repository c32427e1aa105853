# SPDX-License-Identifier: Apache-2.0
"""Walks through every state that a machine can reach."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class FaultError(Exception):
    """The protocol broke a promise. Carries what led there, one action per line."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can happen next.

    A free action neither takes anything from another nor can have anything taken:
    before or after any other, the same state follows.
    """

    name: str
    arguments: tuple[Any, ...]
    is_free: bool = False

    def __str__(self) -> str:
        return f"{self.name} {' '.join(map(str, self.arguments))}"


class Machine(Protocol):
    """A protocol: states are values, actions lead from one to the next."""

    def start(self) -> Hashable:
        """The state before anything happened."""

    def actions(self, state: Any) -> Iterable[Action]:
        """What can happen next."""

    def do(self, state: Any, action: Action) -> Any:
        """The state that follows; FaultError if a promise is broken."""

    def check(self, state: Any) -> None:
        """FaultError if a promise does not hold in this state."""

    def check_end(self, state: Any) -> None:
        """FaultError if nothing more happens, and something should."""


def explore(machine: Machine, *, skip_orders: bool = False) -> int:
    """Visit all states; return how many.

    Args:
        machine: The protocol.
        skip_orders: Do a free action at once and alone, as its order makes no
            difference. Without, that claim is checked in every state.

    Raises:
        FaultError: A promise is broken; says how one gets there.
    """
    start = machine.start()
    came_from: dict[Any, tuple[Any, Action] | None] = {start: None}
    open_states = [start]
    while open_states:
        state = open_states.pop()
        action = None
        try:
            machine.check(state)
            actions = list(machine.actions(state))
            if not actions:
                machine.check_end(state)
            if skip_orders:
                actions = [each for each in actions if each.is_free][:1] or actions
            else:
                _check_free(machine, state, actions)
            for action in actions:
                after = machine.do(state, action)
                if after not in came_from:
                    came_from[after] = (state, action)
                    open_states.append(after)
        except FaultError as fault:
            story = [*_story(came_from, state), *([str(action)] if action else [])]
            raise FaultError("\n  ".join([f"{fault}, after", *story])) from None
    return len(came_from)


def _check_free(machine: Machine, state: Any, actions: list[Action]) -> None:
    """Free actions commute with all others that can happen now."""
    for free in actions:
        if not free.is_free:
            continue
        for other in actions:
            if other == free:
                continue
            one_way = machine.do(machine.do(state, free), other)
            if one_way != machine.do(machine.do(state, other), free):
                raise FaultError(f"'{free}' and '{other}' depend on their order")


def _story(came_from: dict[Any, tuple[Any, Action] | None], state: Any) -> list[str]:
    story = []
    while (step := came_from[state]) is not None:
        state, action = step
        story.append(str(action))
    return story[::-1]
