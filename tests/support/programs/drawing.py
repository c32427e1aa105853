# SPDX-License-Identifier: Apache-2.0
"""Random program from a seed."""

import math
from dataclasses import dataclass
from random import Random

import torch

CALLS = 20

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
MOVED_ONLY = (*COMPLEX, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2)

ALL_OPS = ("sum", "product", "min", "max")
FLOAT_OPS = (*ALL_OPS, "avg", "premul_sum")
INTEGER_OPS = (*ALL_OPS, "band", "bor", "bxor")
COMPLEX_OPS = ("sum", "avg")  # reduced as pairs of floats, which torch does only in all_reduce

REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
)
EXCHANGING = ("all_to_all", "all_to_all_single")
MOVING = ("broadcast", "all_gather", "all_gather_single", "gather", "scatter", *EXCHANGING)
MESSAGES = (
    "send",
    "send_to_any",
    "ring",
)  # messages from the root to the next member, and from each member to its next
KINDS = (
    *REDUCING,
    *REDUCING,
    *MOVING,
    *MESSAGES,
    "barrier",
)  # sums appear twice, because most faults concern them

SHAPES = ((), (0,), (1,), (3,), (0, 4), (7, 5), (2, 3, 4), (1000,), (257, 33))
LARGE_ELEMENTS = 700_001  # total of all parts: several messages, several pieces of a sum
LARGE_SHARE = 0.007


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Collective call, the same on all its members."""

    number: int
    seed: int
    kind: str
    group: int
    members: tuple[int, ...]  # ranks in the group's order
    dtype: torch.dtype
    op: str  # "" for a call that only moves data
    factor: float  # factor of premul_sum
    shape: tuple[int, ...]  # shape of each part
    rows: tuple[tuple[int, ...], ...]  # all-to-all: member i sends rows[i][j] rows to member j
    root: int  # index in the group
    is_async: bool
    is_strided: bool
    is_in_place: bool

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    def next(self, member: int) -> int:
        """Return the member that receives a message from this one."""
        return (member + 1) % self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Groups, of which the first is all ranks, and calls in them."""

    seed: int
    groups: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]


def draw(seed: int, size: int) -> Program:
    """Return the program of this seed on `size` ranks."""
    random = Random(seed)
    everyone = list(range(size))
    some = [random.sample(everyone, random.randint(1, size)) for _ in range(2)]
    groups = (tuple(everyone), *map(tuple, some))
    calls = tuple(_draw_call(random, seed, number, groups) for number in range(CALLS))
    return Program(seed=seed, groups=groups, calls=calls)


def _draw_call(random: Random, seed: int, number: int, groups: tuple[tuple[int, ...], ...]) -> Call:
    group = random.choice((0, 0, 1, 2))
    size = len(groups[group])
    kind = random.choice([each for each in KINDS if size > 1 or each not in MESSAGES])
    dtype, op = _draw_dtype(random, kind)
    even = random.random() < 0.3
    return Call(
        number=number,
        seed=seed,
        kind=kind,
        group=group,
        members=groups[group],
        dtype=dtype,
        op=op,
        factor=random.choice((0.5, 1 / 3, -2.0)),
        shape=_draw_shape(random, kind, size),
        rows=tuple(
            tuple(2 if even else random.randint(0, 4) for _ in range(size)) for _ in range(size)
        ),
        root=random.randrange(size),
        is_async=random.random() < 0.6,
        is_strided=random.random() < 0.3,
        is_in_place=random.random() < 0.3,
    )


def _draw_dtype(random: Random, kind: str) -> tuple[torch.dtype, str]:
    if kind not in REDUCING:
        return random.choice((*FLOATS, *INTEGERS, *MOVED_ONLY)), ""
    dtype = random.choice((*FLOATS, *INTEGERS, *(COMPLEX if kind == "all_reduce" else ())))
    ops = FLOAT_OPS if dtype in FLOATS else INTEGER_OPS if dtype in INTEGERS else COMPLEX_OPS
    return dtype, random.choice(ops)


def _draw_shape(random: Random, kind: str, size: int) -> tuple[int, ...]:
    """Return the shape of one part; all-to-all takes its first dimension from `rows`."""
    if random.random() < LARGE_SHARE:
        return (LARGE_ELEMENTS // (size if _has_parts(kind) else 1),)
    shape = random.choice(SHAPES)
    return shape or (1,) if kind in EXCHANGING else shape


def _has_parts(kind: str) -> bool:
    return kind not in ("all_reduce", "reduce", "broadcast", "barrier", *MESSAGES)


def shape_of(call: Call, source: int, target: int) -> tuple[int, ...]:
    """Return the shape of the part that member `source` has for member `target`."""
    if call.kind not in EXCHANGING or math.prod(call.shape) > LARGE_ELEMENTS // 8:
        return call.shape
    return (call.rows[source][target], *call.shape[1:])
