# SPDX-License-Identifier: Apache-2.0
"""Counts of operations and memory for one module or function of a model, run by itself.

* Operations, and bytes that they read and write: see op_counter.py.
* Saved memory: storages that autograd saves for the backward pass, each counted once, as a whole.
  Parameters and buffers do not count.
* Workspace: memory that is needed only during the run.
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
        storage: Position of the first output that has the same memory; often this output itself.
        num_bytes: Size of the whole memory; 0 if it belongs to a parameter or a buffer.
        is_kept: True if autograd saves the memory for the backward pass.
    """

    input: int | None
    storage: int
    num_bytes: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Operations and memory of one module or function, run forward and backward.

    Attributes:
        forward: Operations of the forward pass.
        backward: Operations of the whole backward pass.
        input_gradient: Operations that compute the gradients of the inputs.
        hidden_bytes: Bytes saved for the backward pass, without memory of inputs and outputs.
        kept_inputs: Positions of the inputs that are saved for the backward pass.
        outputs: Memory of each tensor of the result.
        workspace_bytes: Largest number of bytes that are needed only while a pass runs.
    """

    forward: tuple[OpWork, ...]
    backward: tuple[OpWork, ...]
    input_gradient: tuple[OpWork, ...]
    hidden_bytes: int
    kept_inputs: frozenset[int]
    outputs: tuple[Output, ...]
    workspace_bytes: int


def account(trial: Trial, state: set[int]) -> tuple[Account, Prepared]:
    """Run a module or function once, forward and backward, and count its operations and memory.

    Args:
        trial: Module or function with its inputs.
        state: Ids, from `storage_of`, of the storages of the module's parameters and buffers.

    Returns:
        The counts, and the finished run with its output tensors.
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
        Bytes of each storage, by the storage's id from `storage_of`; filled during the block.
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
