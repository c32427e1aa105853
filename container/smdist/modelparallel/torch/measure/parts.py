# SPDX-License-Identifier: Apache-2.0
"""Calls of a model's forward pass that are run one by one, for measurements and estimates.

Calls that cost the same are of one kind, and only the first call of each kind is run.

`SavedTensors` counts the memory that autograd saves for the backward pass, each tensor once:

    Linear ─> h ─> ReLU ─> r ─> Linear        ReLU saves r, and so does the second Linear:
                                               r counts at the ReLU, the first that saves it

A value counts in full at the first call that saves it, whether the call writes or reads it. A view
counts as the value whose memory it shares. The batch does not count, since it is in memory all the
time.

Every call that saves a value lists the value's name. If two such calls are on two stages, the value
is in memory on both.

`MeasureProgress` reports a measurement or an estimate that lasts more than a few seconds.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.measure.account import Account
from smdist.modelparallel.torch.measure.call_kinds import held, kind
from smdist.modelparallel.torch.measure.sliced_values import SlicedValues
from smdist.modelparallel.torch.measure.stand_in import Making, StandIns, standing_in
from smdist.modelparallel.torch.measure.trial import Trial
from smdist.modelparallel.torch.program.program import (
    Argument,
    Call,
    Constant,
    Program,
    ProgramInterpreter,
    Ref,
)


class SavedTensors:
    """Counter of the memory that autograd saves for the backward pass; each tensor counts once.

    Args:
        inputs: Names of the tensors of the batch, which do not count.
    """

    def __init__(self, inputs: Iterable[str]) -> None:
        self._memory = {name: name for name in inputs}
        self._num_bytes = dict.fromkeys(self._memory, 0)
        self._counted = set(self._memory)

    def saved_by(self, call: Call, account: Account) -> tuple[int, tuple[str, ...]]:
        """Count the bytes that autograd keeps for the backward pass of one call.

        Pass the calls in the order of execution.

        Args:
            call: The call.
            account: Work and memory of the call.

        Returns:
            Number of bytes that were not counted for an earlier call, and the names of all values
            that are kept for this call.
        """
        kept = [call.reads[position] for position in sorted(account.kept_inputs)]
        for name, output in zip(call.writes, account.outputs, strict=True):
            if output.input is None:
                memory = call.writes[output.storage]
                self._num_bytes[memory] = output.num_bytes
            else:
                memory = self._memory[call.reads[output.input]]
            self._memory[name] = memory
            if output.is_kept:
                kept.append(name)
        memories = dict.fromkeys(self._memory[name] for name in kept)
        keeps = tuple(memory for memory in memories if self._num_bytes[memory])
        fresh = memories.keys() - self._counted
        self._counted |= fresh
        return account.hidden_bytes + sum(self._num_bytes[memory] for memory in fresh), keeps


_log = logging.getLogger(__name__)
_SILENT_SECONDS = 3.0
_BETWEEN_SECONDS = {True: 0.2, False: 10.0}  # between two reports: on a terminal, in a file


class MeasureProgress:
    """Progress of a measurement or an estimate, on stderr after the first three seconds.

    A terminal shows one line, which is overwritten. A file gets a new line every ten seconds.

    Args:
        total: Number of parts of the model.
        done: Beginning of each line, such as "measured".
    """

    def __init__(self, total: int, done: str) -> None:
        self._total, self._done = total, done
        self._is_live = sys.stderr.isatty()
        self._begin = time.perf_counter()
        self._next = self._begin + _SILENT_SECONDS
        self._is_open = False

    def report(self, number: int, name: str) -> None:
        """Report that `number` calls are done and that the call `name` is next."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + _BETWEEN_SECONDS[self._is_live]
        self._is_open = self._is_live
        line = f"{self._done} {number} of {self._total} parts of the model; next is {name}"
        sys.stderr.write(f"\r\x1b[K{line[:78]}" if self._is_live else f"{line}\n")
        sys.stderr.flush()

    def close(self, num_kinds: int) -> None:
        """Clear the progress line, and log the number of kinds, the number of calls and the time.

        Args:
            num_kinds: Number of kinds of calls that were run.
        """
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
        seconds = time.perf_counter() - self._begin
        words = "%s %d of %d parts of the model (one of each kind) in %.1f s"
        _log.info(words, self._done, num_kinds, self._total, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCall:
    """Result of running one call by itself.

    Attributes:
        cost: Cost of the call, without the bytes that autograd saves.
        account: Counted operations and memory of the run.
        results: Tensors that the call returned; empty for estimates.
    """

    cost: NodeCost
    account: Account
    results: Sequence[Tensor] = ()


Look = Callable[[Call, int], TriedCall]
Proceed = Callable[[Call, TriedCall], None]


class Parts:
    """Calls of a program, each of which can be run by itself on a device.

    Attributes:
        program: The program.
        model: The model itself.
        device: Device to run on.
        calls: All calls in the order of execution, with their constants on the device.
        inputs: Names of the tensors of the batch.
        kinds: Key of each call, by its name; calls with equal keys cost the same if they read
            slices of sequences in the same places.
        num_kinds: Number of different keys.
        slices: Values of which this rank has a slice of the sequence, as far as calls have run.
    """

    def __init__(self, program: Program, model: nn.Module, device: torch.device) -> None:
        self.program, self.model, self.device = program, model, device
        self.calls = [_moved(call, device) for call in program.calls]
        self.inputs = [source.value for source in program.inputs if isinstance(source, Ref)]
        self._read = {name for call in program.calls for name in call.reads}
        self._read |= {source.value for source in program.outputs if isinstance(source, Ref)}
        self.kinds: dict[str, Hashable] = {call.name: self._kind(call) for call in self.calls}
        self.num_kinds = len(set(self.kinds.values()))
        self.slices = SlicedValues()

    def _kind(self, call: Call) -> Hashable:
        return kind(call, self.program, self.model, self._wanted(call))

    def _wanted(self, call: Call) -> frozenset[int]:
        return frozenset(i for i, name in enumerate(call.writes) if name in self._read)

    @contextmanager
    def trial(
        self, call: Call, inputs: Sequence[Tensor], make: Making
    ) -> Iterator[tuple[Trial, StandIns]]:
        """Prepare one call so that it can be run by itself within the `with` block.

        Args:
            call: The call.
            inputs: Tensors that the call reads, in order; this rank's slices of `slices`.
            make: Function that gets a parameter or buffer of the model, and returns a temporary
                replacement.

        Yields:
            The prepared call, and the temporary parameters and buffers that it uses.
        """
        module = self.model.get_submodule(call.module) if call.is_unit else None
        tensors = {name: held(name, self.model) for name in call.held}
        changed = {call.arguments[at] for at, _ in call.changed}
        with standing_in(module, tensors, make) as stand_ins:
            machine = ProgramInterpreter(
                program=self.program,
                unit=self.model.get_submodule,
                held=stand_ins.held.__getitem__,
            )
            yield (
                Trial(
                    run=lambda tensors: self.slices.run(machine, call, tensors),
                    inputs=inputs,
                    changes=frozenset(
                        i for i, name in enumerate(call.reads) if Ref(name) in changed
                    ),
                    gradients_to=self._wanted(call),
                    is_trained=stand_ins.is_trained,
                ),
                stand_ins,
            )

    def walk(self, look: Look, proceed: Proceed, done: str) -> Mapping[str, NodeCost]:
        """Return the cost of every call by name, but run only the first call of each kind.

        Calls of one kind cost the same.

        Args:
            look: Function `look(call, remaining)` that runs a call and returns the result. The
                argument `remaining` is the number of kinds that have not run yet, at least 1.
            proceed: Function that is called after each call, in order, with the call and the result
                for its kind.
            done: First word of progress lines: "measured" or "estimated".
        """
        progress, memory = MeasureProgress(len(self.calls), done), SavedTensors(self.inputs)
        known: dict[Hashable, tuple[Call, TriedCall]] = {}
        costs = {}
        try:
            for number, call in enumerate(self.calls):
                key = self.kinds[call.name], self.slices.splits(call.reads)
                if key not in known:
                    progress.report(number, call.name)
                    known[key] = call, look(call, max(self.num_kinds - len(known), 1))
                first, tried = known[key]
                self.slices.repeat(first.writes, call.writes)
                proceed(call, tried)
                saved, keeps = memory.saved_by(call, tried.account)
                costs[call.name] = replace(tried.cost, saved_bytes=saved, keeps=keeps)
        finally:
            progress.close(len(known))
        return costs


def _moved(call: Call, device: torch.device) -> Call:
    """Return a copy of a call whose constant arguments, such as tensors, are on a device."""
    return replace(call, arguments=tuple(_on(each, device) for each in call.arguments))


def _on(source: Argument, device: torch.device) -> Argument:
    value = source.value if isinstance(source, Constant) else None
    if isinstance(value, torch.device):
        return Constant(device)
    if not isinstance(value, Tensor) or value.device == device:
        return source
    return Constant(torch.zeros_like(value, device=device) if value.is_meta else value.to(device))
