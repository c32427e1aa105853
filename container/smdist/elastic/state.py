# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training: what is committed, restored and sent to all ranks."""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from smdist.elastic.agent_client import Generation
from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.framework_world import FrameworkWorld

_PLAIN: Final = (bool, int, float, str, type(None))
_OWN: Final = ("model", "optimizer", "sampler", "scheduler", "num_commits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of the world, for callbacks.

    Attributes:
        old_size: Number of ranks at the last commit.
        new_size: Number of ranks now.
        generation: The world of the ranks that are left.
    """

    old_size: int
    new_size: int
    generation: Generation

    @property
    def factor(self) -> float:
        """Ratio of the new number of ranks to the old one."""
        return self.new_size / self.old_size


Callback = Callable[[Any, Change], None]


def scale_linearly(state: State, change: Change) -> None:
    """Multiply the learning rate by the ratio of the new number of ranks to the old one.

    It is the default callback of a change: each rank's batch stays as it is, so the global batch
    shrinks with the number of ranks, and the learning rate with the global batch (the linear
    scaling rule, arXiv:1706.02677).
    """
    state.scale_learning_rate(change.factor)
    if change.generation.rank == 0:
        sys.stderr.write(
            f"smdist: the learning rate is multiplied by {change.factor:.4g}:"
            f" {change.new_size} of {change.old_size} ranks are left\n"
        )


class State(ABC):
    """Base class of `TorchState` and `KerasState`. Thread safety: none.

    Values such as `epoch` are attributes of the state, and part of each commit.

    Attributes:
        sampler: The sampler of the training data, or None.
        num_commits: Number of commits since the start of the training.
    """

    def __init__(self, sampler: ElasticSampler | None, values: dict[str, Any]) -> None:
        self.sampler = sampler
        self.num_commits = 0
        self._callbacks: list[Callback] = []
        self._names = tuple(values)
        self._size = 1
        self._committed: dict[str, Any] = {}
        for name, value in values.items():
            _check(name, value, hasattr(self, name) or name in _OWN)
            setattr(self, name, value)

    def check_callbacks(self, default: Callback) -> None:
        """Check that the callback of a change, `default` unless the state has its own, can work.

        Raises:
            OptionError: The callback is `scale_linearly`, and the learning rate cannot be scaled.
        """
        fault = self.scaling_fault()
        if fault is not None and scale_linearly in (self._callbacks or [default]):
            raise fault

    def scaling_fault(self) -> OptionError | None:
        """Return the reason why the learning rate cannot be scaled; None if it can."""
        return None

    def on_reset(self, callback: Callback) -> None:
        """Call `callback(state, change)` after each change of the world, in every rank.

        The committed state is restored then. The first callback replaces `scale_linearly`.
        """
        self._callbacks.append(callback)

    def commit(self) -> None:
        """Keep a copy of the state in this process, which a later `restore` returns to.

        All ranks must commit at the same steps. The copy is in the host's memory.
        """
        self.num_commits += 1
        values = {name: getattr(self, name) for name in self._names}
        for name, value in values.items():
            _check(name, value, False)
        self._committed = {
            "num_commits": self.num_commits,
            "size": self._size,
            "values": copy.deepcopy(values),
            "sampler": self.sampler.state_dict() if self.sampler is not None else None,
            "content": self._copy_content(),
        }

    def restore(self) -> None:
        """Return to the last commit on this rank, without the other ranks.

        Raises:
            OptionError: Nothing was committed.
        """
        committed = self._committed
        if not committed:
            raise OptionError(
                "restore() was called before commit()",
                "no state was committed that could be restored",
                "Call state.commit() first, or let smdist.elastic.run call train",
                about="restore",
                kind="too_early",
            )
        self.num_commits = committed["num_commits"]
        for name, value in committed["values"].items():
            setattr(self, name, copy.deepcopy(value))
        if self.sampler is not None and committed["sampler"] is not None:
            self.sampler.load_state_dict(committed["sampler"])
        self._load_content(committed["content"])

    def sync(self) -> None:
        """Restore the last commit of rank 0 on all ranks. All ranks must call it together.

        If nothing was committed, this rank's state is committed first.
        """
        self._share_commit()

    def enter_world(self, generation: Generation, default: Callback) -> None:
        """Restore rank 0's last commit in a new world, and run the callbacks of the change.

        `run` calls it, on all ranks, with its argument on_reset as `default`. The result is
        committed, so that the next change begins with this world.
        """
        if not self._committed:
            self._size = generation.size
            self.commit()
        if self.sampler is not None:
            self.sampler.set_world(generation.rank, generation.size)
        self._share_commit()
        old = self._committed["size"]
        self._size = generation.size
        if old != generation.size:
            change = Change(old_size=old, new_size=generation.size, generation=generation)
            for callback in self._callbacks or [default]:
                callback(self, change)
        self.commit()

    def _share_commit(self) -> None:
        if not self._committed:
            self.commit()
        self._committed = self._broadcast(self._committed)
        self.restore()

    @abstractmethod
    def world(self) -> FrameworkWorld:
        """Return the ranks of this state's framework."""

    @abstractmethod
    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate by `factor`."""

    @abstractmethod
    def _copy_content(self) -> Any:
        """Return a copy of the values of model and optimizer, in the host's memory."""

    @abstractmethod
    def _load_content(self, content: Any) -> None:
        """Set the values of model and optimizer to a result of `_copy_content`."""

    @abstractmethod
    def _broadcast(self, committed: dict[str, Any]) -> dict[str, Any]:
        """Return the committed state of rank 0, on all ranks."""


def _check(name: str, value: Any, is_taken: bool) -> None:
    if is_taken:
        raise OptionError(
            f"the state has a value named {name!r}",
            "an attribute or method of the state has this name",
            "Choose another name",
            about=name,
            kind="conflict",
        )
    if not _is_plain(value):
        raise OptionError(
            f"the value {name!r} of the state is of the type {type(value).__name__}",
            "values are numbers, texts, None, and lists and dicts with text keys of these, because"
            " they travel to other ranks as JSON",
            "Keep modules, optimizers and samplers in the arguments of the state for these",
            about=name,
            kind="type",
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return isinstance(value, _PLAIN)
