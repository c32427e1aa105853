# SPDX-License-Identifier: Apache-2.0
"""Count the work and the memory of one run of a trial.

* Operations computed and bytes moved: see op_counter.py.
* Kept memory: storages that autograd saves for the backward pass, each counted once, as a whole.
  Parameters and buffers do not count. Tensors that custom functions keep in attributes are not
  seen.
* Held memory: the most that is alive at one time, beyond what existed before the run and what is
  kept after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from smdist.modelparallel.torch.measure.op_counter import OpCounter, OpWork
from smdist.modelparallel.torch.measure.trial import Prepared, Trial, storage_of, storages


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Memory of one tensor of the result.

    Attributes:
        input: Position of the input whose memory the tensor shares, such as for a view; None where
            the memory is new.
        storage: Number of the memory within one result: outputs with the same number share memory.
        num_bytes: Size of the whole memory; 0 for a parameter's or a buffer's memory.
        is_kept: True if the backward pass keeps the memory.
    """

    input: int | None
    storage: int
    num_bytes: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Cost of one run of a trial, apart from seconds.

    Attributes:
        forward: Work of the forward pass, operation by operation.
        backward: Work of the whole backward pass.
        input_gradient: Work of the part of the backward pass that reaches the inputs.
        hidden_bytes: Kept bytes that belong neither to an input nor to an output.
        kept_inputs: Positions of the inputs that are kept.
        outputs: Memory of each tensor of the result.
        workspace_bytes: Held bytes, in the pass that holds more.
    """

    forward: tuple[OpWork, ...]
    backward: tuple[OpWork, ...]
    input_gradient: tuple[OpWork, ...]
    hidden_bytes: int
    kept_inputs: frozenset[int]
    outputs: tuple[Output, ...]
    workspace_bytes: int


def account(trial: Trial, state: set[int]) -> tuple[Account, Prepared]:
    """Run a trial forward and backward once, and count.

    Args:
        trial: The trial, with its stand-ins in place.
        state: Storages of parameters and buffers.
    """
    run, ledger = trial.prepared(), OpCounter()
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


def _backward(
    run: Prepared, ledger: OpCounter
) -> tuple[tuple[OpWork, ...], tuple[OpWork, ...], int]:
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
    """Collect the bytes of each storage that autograd saves within the block."""
    found: dict[int, int] = {}
    holding: list[Any] = []  # keeps storages alive, so that none reuses a number

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage._cdata] = storage.nbytes()
        holding.append(storage)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
    holding.clear()
