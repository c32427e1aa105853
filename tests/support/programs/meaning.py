# SPDX-License-Identifier: Apache-2.0
"""Meaning of a call: the input of each member, and its expected result.

Each side is a list of parts, in whatever form torch's call takes them: one tensor per
member, one long tensor, or the same tensor for both.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from programs.drawing import COMPLEX, FLOATS, Call, shape_of

LARGE_NUMBERS = 30_000.0  # two of these overflow float16


@dataclass(frozen=True, slots=True)
class Wanted:
    """Expected result before its last rounding, with the allowed distance from it."""

    value: Tensor
    bound: Tensor | None = None  # None: the bits must equal those of `value`


def brought(call: Call, member: int) -> list[Tensor]:
    """Return the parts that a member brings."""
    match call.kind:
        case "barrier":
            return []
        case "all_reduce" | "reduce" | "broadcast" | "all_gather" | "all_gather_single":
            targets = [0]
        case "gather" | "ring":
            targets = [0]
        case "all_reduce_coalesced":
            targets = [0, 1]
        case "send" | "send_to_any":
            targets = [0] if member == call.root else []
        case "scatter" if member != call.root:
            targets = []
        case _:
            targets = list(range(call.size))
    number = (call.seed * 100 + call.number) * 10 + member
    generator = torch.Generator().manual_seed(number)
    return [_draw_part(call, shape_of(call, member, target), generator) for target in targets]


def wanted(call: Call, member: int) -> list[Wanted]:
    """Return the parts that a member must have afterwards."""
    match call.kind:
        case "barrier":
            return []
        case "broadcast":
            return [Wanted(brought(call, call.root)[0])]
        case "all_gather" | "all_gather_single":
            return [Wanted(brought(call, each)[0]) for each in range(call.size)]
        case "gather":
            is_root = member == call.root
            return [Wanted(brought(call, each)[0]) for each in range(call.size) if is_root]
        case "send" | "send_to_any":
            is_target = member == call.next(call.root)
            return [Wanted(brought(call, call.root)[0])] if is_target else []
        case "ring":
            return [
                Wanted(brought(call, each)[0])
                for each in range(call.size)
                if call.next(each) == member
            ]
        case "all_reduce_coalesced":
            parts = [brought(call, each) for each in range(call.size)]
            return [combined(call, list(column)) for column in zip(*parts, strict=True)]
        case "scatter":
            return [Wanted(brought(call, call.root)[member])]
        case "all_to_all" | "all_to_all_single":
            return [Wanted(brought(call, each)[member]) for each in range(call.size)]
        case "reduce" if member != call.root:
            return [Wanted(brought(call, member)[0])]  # the member keeps its input
        case "all_reduce" | "reduce":
            return [combined(call, [brought(call, each)[0] for each in range(call.size)])]
        case _:
            return [combined(call, [brought(call, each)[member] for each in range(call.size)])]


def differs(call: Call, want: Wanted, got: Tensor) -> bool:
    """Return whether a result differs from the expected one."""
    if want.bound is None:
        return not torch.equal(bits(want.value), bits(got))
    rounded = real(got) == want.value.to(real(got).dtype)  # also for infinities
    value = real(got).to(want.value.dtype)
    is_nan = value.isnan() & want.value.isnan()
    is_near = ((value - want.value).abs() <= want.bound) & want.bound.isfinite()
    return not bool((rounded | is_nan | is_near).all())


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, so that NaNs are equal to themselves and zeros have signs."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # contiguous() keeps the stride of one
    return flat.copy_(tensor.reshape(-1)).view(torch.uint8)


def real(tensor: Tensor) -> Tensor:
    """Return a complex number as the two real numbers that are added."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def combined(call: Call, parts: list[Tensor]) -> Wanted:
    """Return the result of the reduce operation on these contributions, in rank order."""
    if call.dtype not in (*FLOATS, *COMPLEX):
        return Wanted(_combine_integers(call, torch.stack(parts)))
    stack = torch.stack([real(part) for part in parts]).double()
    if call.op in ("min", "max"):
        value = stack.amin(0) if call.op == "min" else stack.amax(0)
        return Wanted(value, torch.zeros_like(value))
    scale = {"avg": 1 / call.size, "premul_sum": call.factor}.get(call.op, 1.0)
    value = stack.prod(0) if call.op == "product" else stack.sum(0) * scale
    magnitude = value.abs() if call.op == "product" else stack.abs().sum(0) * abs(scale)
    return Wanted(value, _bound(real(parts[0]).dtype, call.size, value, magnitude))


def _bound(dtype: torch.dtype, size: int, value: Tensor, magnitude: Tensor) -> Tensor:
    """Return the largest rounding error of a reduction.

    The bound counts N - 1 additions and up to two roundings for a factor, in float32 or wider, of
    numbers up to the sum of magnitudes; then one rounding to the dtype.
    """
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    own = torch.finfo(dtype)
    return (
        (size + 1) * wide.eps * magnitude
        + own.eps / 2 * value.abs()
        + own.smallest_normal * own.eps
    )


def _combine_integers(call: Call, stack: Tensor) -> Tensor:
    """Return the exact result wrapped to the dtype; for bool, sum is `or` and product is `and`."""
    is_bool = call.dtype == torch.bool
    wide = stack.to(torch.int64)
    combine = {
        "sum": lambda: wide.amax(0) if is_bool else wide.sum(0),
        "product": lambda: wide.amin(0) if is_bool else wide.prod(0),
        "min": lambda: wide.amin(0),
        "max": lambda: wide.amax(0),
        "band": lambda: reduce(torch.bitwise_and, wide),
        "bor": lambda: reduce(torch.bitwise_or, wide),
        "bxor": lambda: reduce(torch.bitwise_xor, wide),
    }
    return combine[call.op]().to(call.dtype)


def _draw_part(call: Call, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    is_float = call.dtype in (*FLOATS, *COMPLEX)
    if not (call.op and is_float):
        return _any_bits(call.dtype, shape, generator)
    numbers = torch.randn((*shape, 2), generator=generator)
    if call.op == "product":
        numbers = numbers.sign() * (0.5 + numbers.abs().clamp(0, 1.5))
    elif call.number % 4 == 0:
        numbers *= LARGE_NUMBERS
    elif call.number % 4 == 1 and numbers.numel() > 2:
        numbers.view(-1)[:: max(1, numbers.numel() // 3)] = torch.tensor(
            [float("inf"), float("-inf"), float("nan"), -0.0]
        )[call.seed % 4]
    if call.dtype in COMPLEX:
        return torch.view_as_complex(numbers).to(call.dtype)
    return numbers[..., 0].to(call.dtype).contiguous()


def _any_bits(dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return random values with any bits of the dtype, including NaNs with payloads."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    noise = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return noise.view(dtype).reshape(shape)
