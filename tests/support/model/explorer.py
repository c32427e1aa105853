# SPDX-License-Identifier: Apache-2.0
"""Exploration of every state that a machine can reach."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class FaultError(Exception):
    """A state violates an invariant of the protocol; the text lists the actions that led there."""


@dataclass(frozen=True, slots=True)
class Action:
    """Action that can happen next.

    A free action neither disables another action nor can be disabled by one:
    before or after any other, it leads to the same state.
    """

    name: str
    arguments: tuple[Any, ...]
    is_free: bool = False

    def __str__(self) -> str:
        return f"{self.name} {' '.join(map(str, self.arguments))}"


class Machine(Protocol):
    """Protocol: states are values, actions lead from one state to the next."""

    def start(self) -> Hashable:
        """Return the initial state."""

    def actions(self, state: Any) -> Iterable[Action]:
        """Return the actions that are possible in a state."""

    def do(self, state: Any, action: Action) -> Any:
        """Return the next state; raise FaultError if the action violates an invariant."""

    def check(self, state: Any) -> None:
        """Raise FaultError if the state violates an invariant."""

    def check_end(self, state: Any) -> None:
        """Raise FaultError if no action is possible before the protocol is complete."""


def explore(machine: Machine, *, skip_orders: bool = False) -> int:
    """Visit all states and return their number.

    Args:
        machine: The protocol.
        skip_orders: Whether to run a free action at once and alone, because its order makes
            no difference. Without it, that claim is checked in every state.

    Raises:
        FaultError: An invariant is violated; the text lists the actions that lead there.
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
    """Check that free actions commute with all other actions that are possible now."""
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
