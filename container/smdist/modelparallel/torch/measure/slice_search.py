# SPDX-License-Identifier: Apache-2.0
"""Search for the values of a recorded forward pass of which each rank has a slice of the sequence.

Calls run one by one on fake tensors, the first call of each kind alone. All ranks find the same:
results of a call that does not run on fake tensors count as whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from torch._subclasses.fake_tensor import FakeTensorMode

from smdist.modelparallel.torch.measure.estimated import made_up
from smdist.modelparallel.torch.measure.parts import Parts
from smdist.modelparallel.torch.measure.stand_in import fake
from smdist.modelparallel.torch.program.program import Call
from smdist.modelparallel.torch.tensor_splits import SequenceSplit


class SliceSearch:
    """Search for slices among the values of a program.

    Args:
        parts: Calls in the forward pass.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def splits(self) -> Mapping[str, SequenceSplit]:
        """Return the splits of the values of which each rank has a slice, by name."""
        slices = self._parts.slices
        known: dict[Hashable, Sequence[str]] = {}
        for call in self._parts.calls:
            key = self._parts.kinds[call.name], slices.splits(call.reads)
            if key not in known:
                self._run(call)
                known[key] = call.writes
            slices.repeat(known[key], call.writes)
        return slices.found()

    def _run(self, call: Call) -> None:
        if call.is_probed:
            return  # reads values, and fake tensors have none
        device, facts = self._parts.device, self._parts.program.facts
        try:
            with self._fakes:
                inputs = [
                    self._parts.slices.held(name, made_up(facts[name], device))
                    for name in call.reads
                ]
                make = fake(self._fakes, device)
                with self._parts.trial(call, inputs, make) as (trial, _):
                    trial.prepared().forward()
        except Exception:  # the model may raise any error
            return
