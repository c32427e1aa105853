# SPDX-License-Identifier: Apache-2.0
"""Counts of one run of a trial: its operations and its memory.

A trial is one call of the forward pass that is run by itself.

* Operations computed and bytes read and written: see op_counter.py.
* Saved memory: storages that autograd saves for the backward pass, each counted once, as a whole.
  Parameters and buffers do not count. Tensors that custom functions store in attributes are not
  counted.
* Workspace: the largest memory in use at one time, without tensors from before the run and without
  those that are saved.
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
    """Memory of one tensor in the result of a call.

    Attributes:
        input: Position of the input whose memory the tensor shares, for instance as a view; None
            if it shares no input's memory.
        storage: Position of the first output that has the same memory, which may be this one.
        num_bytes: Size of the whole memory; 0 if it is a parameter's or a buffer's.
        is_kept: True if autograd saves the memory for the backward pass.
    """

    input: int | None
    storage: int
    num_bytes: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Operations and memory of one run of a trial, without times.

    Attributes:
        forward: Work of the forward pass, operation by operation.
        backward: Work of the whole backward pass.
        input_gradient: Work of the part of the backward pass that gives gradients of the inputs.
        hidden_bytes: Bytes saved for the backward pass that are no input's and no output's memory.
        kept_inputs: Positions of the inputs that are saved for the backward pass.
        outputs: Memory of each tensor of the result.
        workspace_bytes: Bytes that are needed only during the forward or the backward pass, at the
            peak.
    """

    forward: tuple[OpWork, ...]
    backward: tuple[OpWork, ...]
    input_gradient: tuple[OpWork, ...]
    hidden_bytes: int
    kept_inputs: frozenset[int]
    outputs: tuple[Output, ...]
    workspace_bytes: int


def account(trial: Trial, state: set[int]) -> tuple[Account, Prepared]:
    """Run a trial once, forward and backward, and count its operations and memory.

    Args:
        trial: Call to run, while its module has temporary parameters and buffers.
        state: Numbers of the storages of these parameters and buffers; see `storage_of`.

    Returns:
        The counts, and the run with its results.
    """
    run, counter = trial.prepared(), OpCounter()
    inputs = [storage_of(tensor) for tensor in run.inputs]
    counter.ignore(state | set(inputs) | storages(run.leaves))
    with _saved() as saved, counter:
        run.forward()
    forward, peak = counter.take()
    own = {key for key in saved if key not in state and key not in inputs}
    held = peak - sum(saved[key] for key in own)
    outputs = _outputs(run.results, inputs, state, saved)
    input_gradient, backward, more = _backward(run, counter)
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
    run: Prepared, counter: OpCounter
) -> tuple[tuple[OpWork, ...], tuple[OpWork, ...], int]:
    if not run.seed():
        return (), (), 0
    before = counter.alive
    counter.take()
    with counter:
        if run.leaves:
            run.backward_to_inputs(keep=True)
        to_inputs, _ = counter.take()
        run.backward()
    whole, peak = counter.take()
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
    """Collect the storages that autograd saves within the block.

    Yields:
        Bytes of each storage, by the storage's number; filled during the block.
    """
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
