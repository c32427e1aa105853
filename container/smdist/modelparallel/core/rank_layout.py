# SPDX-License-Identifier: Apache-2.0
"""Layout of ranks: a grid with the three axes pp, tp and rdp of SageMaker's library (SMP).

The coordinates of a rank are its place in the pipeline (`pp`), its part of each tensor (`tp`), and
its replica (`rdp`, reduced data parallelism). A placement strategy is an order of the letters P, T
and D; the coordinate of the rightmost letter varies fastest with the rank. For 8 ranks and
pipelines of 2:

    "cluster" = "DPT"   pipelines 0 1 | 2 3 | 4 5 | 6 7   a pipeline stays on a host
    "spread"  = "TPD"   pipelines 0 4 | 1 5 | 2 6 | 3 7   replicas of a stage stay on a host

Groups are those of SMP. In a PP, TP or RDP group, the coordinate with this name varies and the
others are equal. A DP group has the ranks with the same pp coordinate. An MP group has the ranks of
one replica. The ranks of a group are in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import permutations
from typing import Final

from sagemaker_dist.errors import OptionError, closest, raise_all

CLUSTER: Final = "cluster"
SPREAD: Final = "spread"
_NAMED: Final = {CLUSTER: "DPT", SPREAD: "TPD"}
STRATEGIES: Final = (*_NAMED, *("".join(letters) for letters in permutations("DPT")))


class Axis(str, Enum):
    """Kind of a group of ranks, such as `Axis.PP` for the ranks of one pipeline.

    The names are those of SageMaker's library (SMP).
    """

    WORLD = "world"
    MP = "mp"
    DP = "dp"
    PP = "pp"
    TP = "tp"
    RDP = "rdp"


_VARIES: Final = {  # coordinates that differ between the ranks of a group
    Axis.WORLD: "PTD",
    Axis.MP: "PT",
    Axis.DP: "TD",
    Axis.PP: "P",
    Axis.TP: "T",
    Axis.RDP: "D",
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Coordinates:
    """Coordinates of a rank: place in the pipeline, part of each tensor, and replica."""

    pp: int
    tp: int
    rdp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """Layout of all ranks of a world.

    Attributes:
        size: Number of ranks.
        pipeline_parallel_degree: Number of ranks of one pipeline.
        tensor_parallel_degree: Number of ranks that share each tensor of a stage.
        placement_strategy: "cluster", "spread", or an order of the letters P, T and D.

    Raises:
        OptionError: A degree is not a positive integer, the product of the degrees does not divide
            `size`, or the strategy is unknown; all wrong options are reported at once.
    """

    size: int
    pipeline_parallel_degree: int
    tensor_parallel_degree: int = 1
    placement_strategy: str = CLUSTER

    def __post_init__(self) -> None:
        raise_all(_faults(self))

    @property
    def reduced_data_parallel_degree(self) -> int:
        """Number of replicas, that is, of ranks that hold the same part of the parameters."""
        return self.size // (self.pipeline_parallel_degree * self.tensor_parallel_degree)

    @property
    def data_parallel_degree(self) -> int:
        """Number of ranks with the same place in the pipeline, including tensor parallel ranks."""
        return self.reduced_data_parallel_degree * self.tensor_parallel_degree

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of a rank.

        Raises:
            OptionError: The world has no such rank.
        """
        self._check_rank(rank)
        found = {}
        for letter in reversed(self._letters):
            rank, found[letter] = divmod(rank, self._degrees[letter])
        return Coordinates(pp=found["P"], tp=found["T"], rdp=found["D"])

    def rank(self, *, pp: int, tp: int = 0, rdp: int = 0) -> int:
        """Return the rank with the given coordinates.

        Raises:
            OptionError: A coordinate is out of range.
        """
        places = {"P": pp, "T": tp, "D": rdp}
        raise_all(_coordinate_faults(places, self._degrees))
        rank = 0
        for letter in self._letters:
            rank = rank * self._degrees[letter] + places[letter]
        return rank

    def members(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group along `axis` that contains `rank`, in ascending order.

        Args:
            axis: Kind of group, such as the ranks of a pipeline (PP).
            rank: Rank in the group.
        """
        self._check_rank(rank)
        members = [0]
        for letter, stride in self._strides():
            degree, fixed = self._degrees[letter], rank // stride % self._degrees[letter]
            steps = range(degree) if letter in _VARIES[axis] else (fixed,)
            members = [each + step * stride for each in members for step in steps]
        return tuple(members)

    def all_members(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of all groups along `axis`; each rank is in exactly one group."""
        return tuple(sorted({self.members(axis, rank) for rank in range(self.size)}))

    @property
    def _letters(self) -> str:
        return _NAMED.get(self.placement_strategy, self.placement_strategy)

    @property
    def _degrees(self) -> dict[str, int]:
        return {
            "P": self.pipeline_parallel_degree,
            "T": self.tensor_parallel_degree,
            "D": self.reduced_data_parallel_degree,
        }

    def _strides(self) -> list[tuple[str, int]]:
        """Return (letter, stride) for each axis, in the order of the placement strategy.

        The letter is P, T or D. The stride is the difference between the ranks of two neighbours on
        this axis, whose other coordinates are equal.
        """
        stride, strides = self.size, []
        for letter in self._letters:
            stride //= self._degrees[letter]
            strides.append((letter, stride))
        return strides

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise OptionError(
                f"rank is {rank!r}",
                f"the ranks of this world are 0 to {self.size - 1}",
                "Pass one of these ranks",
                about="rank",
            )


def _faults(layout: RankLayout) -> Iterator[OptionError]:
    numbers = {
        "size": layout.size,
        "pipeline_parallel_degree": layout.pipeline_parallel_degree,
        "tensor_parallel_degree": layout.tensor_parallel_degree,
    }
    wrong = {name: value for name, value in numbers.items() if not _is_count(value)}
    for name, value in wrong.items():
        yield OptionError(
            f"{name} is {value!r}",
            "this option is a number of ranks",
            "Pass an integer of at least 1",
            about=name,
        )
    if layout.placement_strategy not in STRATEGIES:
        yield OptionError(
            f"placement_strategy is {layout.placement_strategy!r}",
            "no placement strategy has this name",
            closest(str(layout.placement_strategy), STRATEGIES),
            about="placement_strategy",
            kind="unknown",
        )
    if not wrong:
        yield from _indivisible(layout)


def _indivisible(layout: RankLayout) -> Iterator[OptionError]:
    pipeline, tensor = layout.pipeline_parallel_degree, layout.tensor_parallel_degree
    model = pipeline * tensor
    if layout.size % model == 0:
        return
    product = f"pipeline_parallel_degree {pipeline}"
    if tensor > 1:
        product += f" x tensor_parallel_degree {tensor}"
    replicas = layout.size // model
    below = f"{model * replicas} ranks for {_replicas(replicas)} or " if replicas else ""
    yield OptionError(
        f"the world has {layout.size} {'rank' if layout.size == 1 else 'ranks'} and the model"
        f" takes {model} ({product})",
        f"each replica of the model needs {model} ranks, and no rank may be left over",
        f"Start {below}{model * (replicas + 1)} ranks for {_replicas(replicas + 1)}, or choose a "
        f"degree that divides {layout.size}",
        about="pipeline_parallel_degree",
        kind="indivisible",
    )


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number > 1)}"


def _coordinate_faults(places: dict[str, int], degrees: dict[str, int]) -> Iterator[OptionError]:
    names = {"P": "pp", "T": "tp", "D": "rdp"}
    for letter, place in places.items():
        if not 0 <= place < degrees[letter]:
            yield OptionError(
                f"{names[letter]} is {place!r}",
                f"the coordinates on this axis are 0 to {degrees[letter] - 1}",
                "Pass one of these coordinates",
                about=names[letter],
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
