# SPDX-License-Identifier: Apache-2.0
"""Execution of a program as calls of torch.distributed, on one rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from programs.drawing import MESSAGES, REDUCING, Call, Program, draw
from programs.meaning import bits, brought, differs, wanted
from programs.tensors import Side, is_given_kept, sides_of

TIMEOUT = timedelta(seconds=20)
Results = dict[int, tuple[Side, Side]]  # by the number of the call: inputs, outputs


class ProgramError(AssertionError):
    """A call of a program failed; the text names the call."""


def play(seed: int, rank: int, size: int, devices: tuple[str, ...] = ("cpu",)) -> None:
    """Run the program of this seed twice: check the results, then check that the bits repeat.

    The tensors of the calls are on the devices in turn.

    Raises:
        ProgramError: A call failed; the text names the seed and the call.
    """
    program = draw(seed, size)
    groups = [
        dist.new_group(list(ranks), timeout=TIMEOUT, sort_ranks=False) for ranks in program.groups
    ]
    first = _run(program, rank, groups, devices)
    _check(program, rank, first)
    _compare(program, first, _run(program, rank, groups, devices))
    for group, ranks in zip(groups, program.groups, strict=True):
        if rank in ranks:
            dist.destroy_process_group(group)


def _run(program: Program, rank: int, groups: list[Any], devices: tuple[str, ...]) -> Results:
    """Run all calls in order, and wait for those in flight in an order of this rank's own."""
    random = Random(f"{program.seed} on {rank}")
    pending: list[tuple[Call, dist.Work]] = []
    results = {}
    for call in program.calls:
        if rank not in call.members:
            continue
        me = call.members.index(rank)
        with _named(call):
            results[call.number] = given, taken = sides_of(
                call, me, brought(call, me), devices[call.number % len(devices)]
            )
            how = {"group": groups[call.group], "async_op": call.is_async}
            works = _call(call, given, taken, how)
        pending += [(call, work) for work in works]
        while pending and random.random() < 0.3:
            _wait(pending.pop(random.randrange(len(pending))))
    random.shuffle(pending)
    for started in pending:
        _wait(started)
    return results


def _wait(started: tuple[Call, dist.Work]) -> None:
    call, work = started
    with _named(call):
        work.wait()


def _check(program: Program, rank: int, results: Results) -> None:
    for number, (given, taken) in results.items():
        call = program.calls[number]
        me = call.members.index(rank)
        with _named(call):
            for want, got in zip(wanted(call, me), taken.parts, strict=True):
                if differs(call, want, got.cpu()):
                    raise ProgramError(f"wanted {want.value}, got {got}")
            if is_given_kept(call):
                _compare_parts(brought(call, me), given.parts, "the input has changed")


def _compare(program: Program, first: Results, second: Results) -> None:
    for number, (_, taken) in first.items():
        with _named(program.calls[number]):
            _compare_parts(taken.parts, second[number][1].parts, "other bits the second time")


def _compare_parts(ones: list[Tensor], others: list[Tensor], fault: str) -> None:
    for one, other in zip(ones, others, strict=True):
        if not torch.equal(bits(one), bits(other)):
            raise ProgramError(f"{fault}: first {one}, then {other}")


@contextmanager
def _named(call: Call) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ProgramError(f"program {call.seed}, {call}: {error}") from error


def _call(call: Call, given: Side, taken: Side, how: dict[str, Any]) -> list[dist.Work]:
    """Start a call and return the works to wait for."""
    if call.kind in MESSAGES:
        return _send(call, given.parts, taken.parts, how["group"])
    call_kind = _call_reducing if call.kind in REDUCING else _call_moving
    work = call_kind(call, given, taken, how)
    return [] if work is None else [work]


def _send(call: Call, ins: list[Tensor], outs: list[Tensor], group: Any) -> list[dist.Work]:
    me = dist.get_rank(group)
    to = {"group": group, "group_dst": call.next(me), "tag": call.number}
    source = {"group": group, "group_src": (me - 1) % call.size, "tag": call.number}
    if call.kind == "send_to_any":
        source.pop("group_src")
    if call.kind == "ring":
        both = (dist.isend, ins[0], to["group_dst"]), (dist.irecv, outs[0], source["group_src"])
        return dist.batch_isend_irecv(
            [dist.P2POp(each, part, group=group, group_peer=peer) for each, part, peer in both]
        )
    if call.is_async:
        return [dist.isend(p, **to) for p in ins] + [dist.irecv(p, **source) for p in outs]
    for part in ins:
        dist.send(part, **to)
    for part in outs:
        dist.recv(part, **source)
    return []


def _call_moving(call: Call, given: Side, taken: Side, how: dict[str, Any]) -> dist.Work | None:
    ins, outs, root = given.parts, taken.parts, call.root
    match call.kind:
        case "barrier":
            return dist.barrier(**how)
        case "broadcast":
            return dist.broadcast(ins[0], group_src=root, **how)
        case "all_gather":
            return dist.all_gather(outs, ins[0], **how)
        case "all_gather_single":
            return dist.all_gather_single(taken.one, ins[0], **how)
        case "gather":
            return dist.gather(ins[0], outs or None, group_dst=root, **how)
        case "scatter":
            return dist.scatter(outs[0], ins or None, group_src=root, **how)
        case "all_to_all":
            return dist.all_to_all(outs, ins, **how)
        case _:
            splits = [[part.shape[0] for part in side.parts] for side in (taken, given)]
            return dist.all_to_all_single(taken.one, given.one, *splits, **how)


def _call_reducing(call: Call, given: Side, taken: Side, how: dict[str, Any]) -> dist.Work | None:
    ins, outs, how = given.parts, taken.parts, how | {"op": _op_of(call)}
    match call.kind:
        case "all_reduce_coalesced":
            return dist.all_reduce_coalesced(ins, **how)
        case "all_reduce":
            return dist.all_reduce(ins[0], **how)
        case "reduce":
            return dist.reduce(ins[0], group_dst=call.root, **how)
        case "reduce_scatter":
            return dist.reduce_scatter(outs[0], ins, **how)
        case _:
            return dist.reduce_scatter_single(outs[0], given.one, **how)


def _op_of(call: Call) -> Any:
    if call.op == "premul_sum":
        return dist._make_nccl_premul_sum(call.factor)
    return getattr(dist.ReduceOp, call.op.upper())
