# SPDX-License-Identifier: Apache-2.0
"""Split a captured model into calls that are tried one by one, each kind once.

`SavedTensors` assigns memory kept for the backward pass, so that no memory counts twice:

    Linear ─> h ─> ReLU ─> r ─> Linear        ReLU keeps r, and so does the second Linear:
                                               r counts at the ReLU, the first that keeps it

A value counts in full at the first call that keeps it, whether the call writes or reads it; a view
counts as the value whose memory it shows. The batch does not count, since it is in memory all the
time. Every call that keeps a value lists its name: after a cut between two such calls, the value
is in memory on both sides.

`MeasureProgress` reports a measurement or an estimate that lasts more than a few seconds.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.measure.account import Account
from smdist.modelparallel.torch.measure.call_kinds import held, kind
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
    """Memory kept for the backward pass; calls are passed in their order of execution.

    Args:
        inputs: Names of the values of the batch.
    """

    def __init__(self, inputs: Iterable[str]) -> None:
        self._memory = {name: name for name in inputs}
        self._num_bytes = dict.fromkeys(self._memory, 0)
        self._counted = set(self._memory)

    def kept(self, call: Call, account: Account) -> tuple[int, tuple[str, ...]]:
        """Return the bytes that this call keeps first, and the names of all values it keeps."""
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
    """Progress report: one line that changes on a terminal; elsewhere a line every ten seconds.

    Args:
        total: Number of nodes.
        done: Participle for what is done to nodes: "measured".
    """

    def __init__(self, total: int, done: str) -> None:
        self._total, self._done = total, done
        self._is_live = sys.stderr.isatty()
        self._begin = time.perf_counter()
        self._next = self._begin + _SILENT_SECONDS
        self._is_open = False

    def tell(self, number: int, name: str) -> None:
        """Report that `number` nodes are done and that the node `name` is next."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + _BETWEEN_SECONDS[self._is_live]
        self._is_open = self._is_live
        line = f"{self._done} {number} of {self._total} parts of the model; next is {name}"
        sys.stderr.write(f"\r\x1b[K{line[:78]}" if self._is_live else f"{line}\n")
        sys.stderr.flush()

    def close(self, num_kinds: int) -> None:
        """Clear the line, and log how much was done."""
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
        seconds = time.perf_counter() - self._begin
        words = "%s %d kinds of %d parts in %.1f s"
        _log.info(words, self._done, num_kinds, self._total, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCall:
    """Result of trying a call.

    Attributes:
        cost: Cost of the call, without the bytes that it keeps.
        account: Work and memory of the run.
        results: Results of the call, if the calls that follow need them.
    """

    cost: NodeCost
    account: Account
    results: Sequence[Tensor] = ()


Look = Callable[[Call, int], TriedCall]
Proceed = Callable[[Call, TriedCall], None]


class Parts:
    """Calls of a program, and how to run each by itself on a device.

    Args:
        program: Program of a captured model.
        model: The model itself.
        device: Device of the trials.
    """

    def __init__(self, program: Program, model: nn.Module, device: torch.device) -> None:
        self.program, self.model, self.device = program, model, device
        self.calls = [_moved(call, device) for call in program.calls]
        self.inputs = [source.value for source in program.inputs if isinstance(source, Ref)]
        self._read = {name for call in program.calls for name in call.reads}
        self._read |= {source.value for source in program.outputs if isinstance(source, Ref)}
        self.kinds: dict[str, Hashable] = {call.name: self._kind(call) for call in self.calls}
        self.num_kinds = len(set(self.kinds.values()))

    def _kind(self, call: Call) -> Hashable:
        return kind(call, self.program, self.model, self._wanted(call))

    def _wanted(self, call: Call) -> frozenset[int]:
        return frozenset(i for i, name in enumerate(call.writes) if name in self._read)

    @contextmanager
    def trial(
        self, call: Call, inputs: Sequence[Tensor], make: Making
    ) -> Iterator[tuple[Trial, StandIns]]:
        """Make a trial of a call; its stand-ins are in place within the block."""
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
                    run=lambda tensors: _run(machine, call, tensors),
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
        """Return the cost of each call, by its name.

        Args:
            look: Tries the first call of a kind; its second argument is the number of kinds left.
            proceed: Receives every call after that, in the order of execution.
            done: Participle for progress lines: "measured".
        """
        progress, keeping = MeasureProgress(len(self.calls), done), SavedTensors(self.inputs)
        known: dict[Hashable, TriedCall] = {}
        costs = {}
        try:
            for number, call in enumerate(self.calls):
                key = self.kinds[call.name]
                if key not in known:
                    progress.tell(number, call.name)
                    known[key] = look(call, self.num_kinds - len(known))
                proceed(call, known[key])
                saved, keeps = keeping.kept(call, known[key].account)
                costs[call.name] = replace(known[key].cost, saved_bytes=saved, keeps=keeps)
        finally:
            progress.close(len(known))
        return costs


def _run(machine: ProgramInterpreter, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    values: dict[str, Any] = dict(zip(call.reads, tensors, strict=True))
    machine.run([call], values)
    return [values[name] for name in call.writes]


def _moved(call: Call, device: torch.device) -> Call:
    """Return the call with its constants on a device."""
    return replace(call, arguments=tuple(_on(each, device) for each in call.arguments))


def _on(source: Argument, device: torch.device) -> Argument:
    value = source.value if isinstance(source, Constant) else None
    if isinstance(value, torch.device):
        return Constant(device)
    if not isinstance(value, Tensor) or value.device == device:
        return source
    return Constant(torch.zeros_like(value, device=device) if value.is_meta else value.to(device))
