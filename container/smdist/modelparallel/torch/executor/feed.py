# SPDX-License-Identifier: Apache-2.0
"""The user's code around the model, run once for each stage and microbatch.

    def feed(microbatch, call):
        x, y = batches[microbatch]
        loss = criterion(call(((x,), {})), y)     only the last stage comes back from call()
        return loss.detach(), [(loss / 8, None)]

On the other stages `call` runs the stage, sends what it made, and raises `PassedOn`. So what is
around the model, such as autocast, is around each of its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.randomness import Draws, seed_generators

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[[Arguments], Any]
Roots = list[tuple[Tensor, Tensor | None]]
Feed = Callable[[int, Call], tuple[Any, Roots]]
_NAME: Final = ":feed"  # what random numbers around the model are seeded for
_MEND: Final = "Call the model once for each microbatch, and let PassedOn through"


class PassedOn(BaseException):
    """The stage has run and the next ones go on from here: let it through."""


class Turn:
    """One run of the feed.

    Args:
        run: The stage: from the model's arguments to the values that it keeps.
        output: What the model returns, from these; None where the stage is not the last.
    """

    def __init__(
        self,
        run: Callable[[Arguments], dict[str, Any]],
        output: Callable[[Mapping[str, Any]], Any] | None,
    ) -> None:
        self._run, self._output = run, output
        self._calls = 0
        self._error: BaseException | None = None
        self.values: dict[str, Any] = {}

    def __call__(self, arguments: Arguments) -> Any:
        """Stand for the model."""
        self._calls += 1
        if self._calls > 1:
            self._error = _wrong("called the model twice in one microbatch")
            raise self._error
        try:
            self.values = self._run(arguments)
        except BaseException as error:
            self._error = error
            raise
        if self._output is None:
            raise PassedOn
        return self._output(self.values)

    def take(self, feed: Feed, microbatch: int) -> tuple[Any, Roots]:
        """Run the feed; what it returns, or nothing where it was passed on.

        Raises:
            OptionError: It called the model twice or never, or kept `PassedOn` to itself.
        """
        is_passed, answer = False, None
        try:
            answer = feed(microbatch, self)
        except PassedOn:
            is_passed = True
        if self._error is not None:
            raise self._error  # should the feed have swallowed it
        if not self._calls:
            raise _wrong("never called the model")
        if is_passed:
            return None, []
        if self._output is None:
            raise _wrong("caught PassedOn, which ends it on all stages but the last")
        return _checked(answer)


def seed(draws: Draws) -> None:
    """Set torch's generators for one run of the feed.

    A rank with several stages runs it for each of them, and other ranks do too: all see the same
    random numbers.
    """
    seed_generators(draws.seed_of(_NAME))


def _checked(answer: Any) -> tuple[Any, Roots]:
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list)
    if not is_pair:
        raise OptionError(
            f"the feed returned {type(answer).__name__}",
            "it returns a result and a list of (tensor, gradient): where the backward pass starts",
            "Return such a pair; an empty list starts none",
        )
    result, roots = answer
    return result, roots


def _wrong(what: str) -> OptionError:
    return OptionError(f"the feed {what}", "each run of it is one microbatch's", _MEND)
