# SPDX-License-Identifier: Apache-2.0
"""A captured model taken apart into trials, with twins found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.torch.measure.account import Account
from smdist.modelparallel.torch.measure.keeping import Keeping
from smdist.modelparallel.torch.measure.progress import Progress
from smdist.modelparallel.torch.measure.stand_in import Making, StandIns, standing_in
from smdist.modelparallel.torch.measure.trial import Trial
from smdist.modelparallel.torch.measure.twins import held, kind
from smdist.modelparallel.torch.program import Argument, Call, Constant, Machine, Program, Ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What trying a call gave.

    Attributes:
        cost: Without the bytes that it keeps.
        account: Those.
        results: To go on with, if one goes on.
    """

    cost: NodeCost
    account: Account
    results: Sequence[Tensor] = ()


Look = Callable[[Call, int], Found]
Proceed = Callable[[Call, Found], None]


class Parts:
    """The calls of a program, and how to run each by itself on some device.

    Args:
        program: Of a captured model.
        model: The model itself.
        device: Where trials run.
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
        """A call as a trial, for as long as its stand-ins are in place."""
        module = self.model.get_submodule(call.module) if call.is_unit else None
        tensors = {name: held(name, self.model) for name in call.held}
        changed = {call.arguments[at] for at, _ in call.changed}
        with standing_in(module, tensors, make) as stand_ins:
            machine = Machine(
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
        """What each call costs.

        Args:
            look: Tries the first call of a kind; it is told how many kinds are left.
            proceed: Sees every call after that, in the order of execution.
            done: For people: "measured".
        """
        progress, keeping = Progress(len(self.calls), done), Keeping(self.inputs)
        known: dict[Hashable, Found] = {}
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


def _run(machine: Machine, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    values: dict[str, Any] = dict(zip(call.reads, tensors, strict=True))
    machine.run([call], values)
    return [values[name] for name in call.writes]


def _moved(call: Call, device: torch.device) -> Call:
    """The same call with its constants on a device."""
    return replace(call, arguments=tuple(_on(each, device) for each in call.arguments))


def _on(source: Argument, device: torch.device) -> Argument:
    value = source.value if isinstance(source, Constant) else None
    if isinstance(value, torch.device):
        return Constant(device)
    if not isinstance(value, Tensor) or value.device == device:
        return source
    return Constant(torch.zeros_like(value, device=device) if value.is_meta else value.to(device))
