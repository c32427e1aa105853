# SPDX-License-Identifier: Apache-2.0
"""Best layout of one model on each of several clusters, for `sagemaker-dist advise`.

    python -m smdist.modelparallel.planner.compare_clusters < request.json > answer.json

The request has `file` (path of the model file), `clusters` (list of clusters as in `--cluster`),
`global_batch` (samples of a step over all replicas, or null for the batch of `example()` on each
replica), `precision` (a name of `PRECISIONS`), and optionally `calibration` (path of a file of
measured speeds) with `calibrated` (numbers of the clusters of such machines). The answer has
`parameters`, `batch_per_replica`, `assumptions` and, in the order of the clusters, `results`: a
layout with its prediction, or the fields of the error that says why there is none. The answer is
the last line; each line before it is an object with `progress`, a sentence for the terminal.

The model is captured for two sizes of microbatch. Costs are estimated once for each kind of device;
only the search is repeated for each cluster. As in a plan of one cluster, layers are split only
where the fastest layout of whole layers leaves something to save; the splits are proved once.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core import calibration
from smdist.modelparallel.core.calibration import Calibration
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.layout import (
    PRECISIONS,
    LayoutSearch,
    Machine,
    TrainingNeeds,
    find_fastest,
    why_whole,
)
from smdist.modelparallel.core.layout.explain_layout import (
    assumptions_of,
    rule_of,
    unsplit_assumption,
)
from smdist.modelparallel.core.layout.find_layout import BUSY
from smdist.modelparallel.core.layout.from_graph import (
    BorderMessages,
    MicrobatchCosts,
    SplitCosts,
    layers_between,
    with_splits,
)
from smdist.modelparallel.core.layout.measured_machine import measured_machine
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.plan_errors import PlanError
from smdist.modelparallel.planner.cluster_json import read_cluster
from smdist.modelparallel.planner.model_file import ModelFile
from smdist.modelparallel.planner.stdout_redirect import stdout_to_stderr

if TYPE_CHECKING:
    from smdist.modelparallel.torch.capture import Captured
    from smdist.modelparallel.torch.program.batch import Batch

_FAILED: Final = 1
_USAGE: Final = 2


def main() -> int:
    """Answer the request on standard input, and return the exit status."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    try:
        request = json.loads(sys.stdin.read())
        with os.fdopen(os.dup(sys.stdout.fileno()), "w") as lines, stdout_to_stderr():
            # The model file may print: its output goes to standard error.
            answer = compare(request, progress=lambda text: _write_progress(lines, text))
    except DistError as error:
        json.dump({"error": error.as_dict()}, sys.stdout)
        return _USAGE if isinstance(error, OptionError) else _FAILED
    json.dump(answer, sys.stdout)
    return 0


def _write_progress(lines: TextIO, text: str) -> None:
    lines.write(json.dumps({"progress": text}) + "\n")
    lines.flush()


def compare(
    request: dict[str, Any], *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return the answer to a request.

    Args:
        request: Request as in the module's description.
        progress: Called with a sentence after each part of the work.

    Raises:
        OptionError: The model file or the model is wrong.
    """
    from smdist.modelparallel.torch.program.batch import Batch

    file = ModelFile(Path(request["file"]))
    model, batch = file.model(with_values=False), Batch.of(file.example("cpu"))
    begin = time.perf_counter()
    measured = _calibration(request)
    clusters = [read_cluster(json.dumps(each)) for each in request["clusters"]]
    sizes = _Sizes(model, batch, {each.ranks_per_host for each in clusters})
    progress(f"{type(model).__name__} is recorded, in {time.perf_counter() - begin:.1f} s")
    results = []
    assumed: list[str] = []
    for number, cluster in enumerate(clusters, 1):
        begin = time.perf_counter()
        machine = Machine(cluster=cluster)
        if measured is not None and number - 1 in request["calibrated"]:
            machine = measured_machine(measured.applied_to(cluster), measured)
        needs = _needs(request, batch.size, machine)
        try:
            search = sizes.search(machine, needs)
        except OptionError as error:
            results.append({"error": error.as_dict()})
            assumed.extend(machine.assumptions())
        else:
            results.append(_document(search))
            assumed.extend(assumptions_of(search, machine))
        name = f"{cluster.num_hosts} x {cluster.ranks_per_host} {cluster.device.name}"
        took = time.perf_counter() - begin
        progress(f"{number} of {len(clusters)} clusters compared: {name}, in {took:.1f} s")
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "batch_per_replica": batch.size,
        "assumptions": list(dict.fromkeys([*assumed, *sizes.assumptions()])),
        "results": results,
    }


class _Sizes:
    """Recordings of a model for the smallest and the largest microbatch, with their costs.

    Seconds and bytes are fitted through both sizes, since a part of them is the same for any number
    of samples, such as the reads of weights. A batch of one sample is recorded once more with the
    sample twice, if the model takes it.

    Args:
        model: The model.
        batch: Batch of one replica.
        ranks_per_host: Ranks of a host of each cluster; layers are split over their divisors.

    Raises:
        CaptureError: The model's forward pass cannot be recorded.
    """

    def __init__(self, model: Any, batch: Batch, ranks_per_host: Collection[int]) -> None:
        self._model, self._batch = model, batch
        self._degrees = {each for ranks in ranks_per_host for each in divisors(ranks) if each > 1}
        self._recorded = {1: _recorded(model, batch)}
        self._messages: dict[int, Mapping[str, BorderMessages]] = {}
        self._are_split, self._unsplit, self._kept_whole = False, "", False
        self._known: dict[tuple[Device, int], list[MicrobatchCosts]] = {}

    def search(self, machine: Machine, needs: TrainingNeeds) -> LayoutSearch:
        """Return the fastest layouts of the model on a machine.

        Raises:
            PlanError: No layout is possible, or none fits.
        """
        whole = layers_between(*self._costs_of(1, machine.cluster.device), machine)
        first = fault = None
        try:
            first = find_fastest(whole, machine, needs)
        except PlanError as error:
            fault = error
        if first is not None and why_whole(first):
            self._kept_whole = True
            return first
        if splits := list(self._splits_on(machine)):
            split = with_splits(whole, splits, machine)
            return find_fastest(split, machine, needs, known=first)
        if first is None:
            assert fault is not None
            raise fault
        return first

    def _splits_on(self, machine: Machine) -> Iterator[SplitCosts]:
        """Yield the costs of the model for each number of ranks of a host that split its layers."""
        cluster = machine.cluster
        if cluster.ranks_per_host > 1 and not self._are_split:
            self._split()
        for degree, messages in self._messages.items():
            if cluster.ranks_per_host % degree == 0:
                small, large = self._costs_of(degree, cluster.device)
                yield SplitCosts(degree=degree, small=small, large=large, messages=messages)

    def _split(self) -> None:
        """Record copies of the model whose layers are split, for all clusters at once."""
        from smdist.modelparallel.torch.capture import CaptureError
        from smdist.modelparallel.torch.planning.split_variants import copies_for

        self._are_split = True
        copies, self._unsplit = copies_for(self._model, self._batch, self._degrees)
        for degree, each in copies.items():
            try:
                self._recorded[degree] = _recorded(each.model, self._batch)
            except CaptureError:  # the whole model was recorded nevertheless
                continue
            self._messages[degree] = each.messages

    def _costs_of(self, degree: int, device: Device) -> tuple[MicrobatchCosts, MicrobatchCosts]:
        """Return graph and costs of both sizes; the same twice if only one could be recorded."""
        key = (device, degree)
        if key not in self._known:
            self._known[key] = [_costs(*each, device) for each in self._recorded[degree]]
        return self._known[key][0], self._known[key][-1]

    def assumptions(self) -> Iterator[str]:
        """Yield the reasons why layers stay whole on some clusters, or on all."""
        if self._kept_whole:
            yield (
                "Layers stay whole on clusters whose fastest layout of whole layers computes for"
                f" {100 * BUSY:.0f} % of its step or more, which splits do not save."
            )
        if self._unsplit:
            yield unsplit_assumption(self._unsplit)


def _recorded(model: Any, batch: Batch) -> list[tuple[int, Captured]]:
    """Return the sizes of microbatches that are recorded, in samples, with the recordings."""
    from smdist.modelparallel.torch.capture import CaptureError, capture

    found = [(1, capture(model, batch.microbatch(batch.size)))]
    larger = batch if batch.size > 1 else batch.repeated(2)
    try:
        found.append((larger.size, capture(model, larger.example)))
    except CaptureError:
        if batch.size > 1:
            raise
    return found


def _calibration(request: dict[str, Any]) -> Calibration | None:
    path = request.get("calibration")
    return None if path is None else calibration.load(path)


def _costs(samples: int, captured: Captured, device: Device) -> MicrobatchCosts:
    from smdist.modelparallel.torch.measure import estimate

    costs = estimate(captured, device)
    return MicrobatchCosts(graph=captured.graph, costs=costs, samples=samples)


def _needs(request: dict[str, Any], batch_size: int, machine: Machine) -> TrainingNeeds:
    number = request["global_batch"]
    batch = {"batch_per_replica": batch_size} if number is None else {"global_batch": number}
    precision = PRECISIONS[request["precision"]]
    offload = None if machine.can_offload else False
    return TrainingNeeds(**batch, precision=precision, reduction="auto", offload=offload)


def _document(search: LayoutSearch) -> dict[str, Any]:
    best = search.best
    return {
        "layout": str(best.layout),
        "family": best.layout.family,
        "options": best.layout.options(),
        "rule": rule_of(search).value,
        "samples": best.layout.samples,
        "step_seconds": best.step_seconds,
        "low_seconds": best.low_seconds,
        "high_seconds": best.high_seconds,
        "seconds": asdict(best.time),
        "memory_bytes": best.memory.total,
        "memory": asdict(best.memory),
    }


if __name__ == "__main__":
    sys.exit(main())
