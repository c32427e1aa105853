# SPDX-License-Identifier: Apache-2.0
"""Counts what one run of a trial computes, moves, keeps and holds.

* Computed and moved: see ledger.py.
* Kept: storages that autograd saves for the backward pass, each counted once, whole. Parameters
  and buffers do not count. What custom functions hide in attributes is not seen.
* Held: the most that is alive at one time, beyond what is there before and what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from smdist.modelparallel.torch.measure.ledger import Ledger, Work
from smdist.modelparallel.torch.measure.trial import Prepared, Trial, storage_of, storages


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The memory of a tensor of the result.

    Attributes:
        input: Which input's memory it is, such as for a view; None where it is new.
        storage: Tells new memory of one result apart: outputs with the same number share it.
        num_bytes: Of the whole memory; 0 where it is a parameter's or a buffer's.
        is_kept: Whether the backward pass keeps it.
    """

    input: int | None
    storage: int
    num_bytes: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one run of a trial costs, apart from seconds.

    Attributes:
        forward: Operation by operation.
        backward: The whole backward pass.
        input_gradient: The part of it that reaches the inputs.
        hidden_bytes: Kept, and neither an input nor an output.
        kept_inputs: Inputs that are kept.
        outputs: Each tensor of the result.
        workspace_bytes: Held in the worse of both passes.
    """

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    input_gradient: tuple[Work, ...]
    hidden_bytes: int
    kept_inputs: frozenset[int]
    outputs: tuple[Output, ...]
    workspace_bytes: int


def account(trial: Trial, state: set[int]) -> tuple[Account, Prepared]:
    """Runs a trial forward and backward once and counts.

    Args:
        trial: With the stand-ins in place.
        state: Storages of parameters and buffers.
    """
    run, ledger = trial.prepared(), Ledger()
    inputs = [storage_of(tensor) for tensor in run.inputs]
    ledger.know(state | set(inputs) | storages(run.leaves))
    with _saved() as saved, ledger:
        run.forward()
    forward, peak = ledger.turn_page()
    own = {key for key in saved if key not in state and key not in inputs}
    held = peak - sum(saved[key] for key in own)
    outputs = _outputs(run.results, inputs, state, saved)
    input_gradient, backward, more = _backward(run, ledger)
    return Account(
        forward=forward,
        backward=backward,
        input_gradient=input_gradient,
        hidden_bytes=sum(saved[key] for key in own - storages(run.results)),
        kept_inputs=frozenset(i for i, key in enumerate(inputs) if key in saved),
        outputs=outputs,
        workspace_bytes=max(held, more, 0),
    ), run


def _backward(run: Prepared, ledger: Ledger) -> tuple[tuple[Work, ...], tuple[Work, ...], int]:
    if not run.seed():
        return (), (), 0
    before = ledger.alive
    ledger.turn_page()
    with ledger:
        if run.leaves:
            run.backward_to_inputs(keep=True)
        to_inputs, _ = ledger.turn_page()
        run.backward()
    whole, peak = ledger.turn_page()
    return to_inputs, whole, peak - before


def _outputs(
    found: list[Tensor], inputs: list[int], state: set[int], saved: Mapping[int, int]
) -> tuple[Output, ...]:
    keys = [storage_of(tensor) for tensor in found]
    return tuple(
        Output(
            input=inputs.index(key) if key in inputs else None,
            storage=keys.index(key),
            num_bytes=0 if key in state else tensor.untyped_storage().nbytes(),
            is_kept=key in saved,
        )
        for key, tensor in zip(keys, found, strict=True)
    )


@contextmanager
def _saved() -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd saves meanwhile."""
    found: dict[int, int] = {}
    holding: list[Any] = []  # or else another could get the same number

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage._cdata] = storage.nbytes()
        holding.append(storage)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
    holding.clear()
