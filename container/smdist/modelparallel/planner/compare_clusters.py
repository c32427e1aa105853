# SPDX-License-Identifier: Apache-2.0
"""Best layout of one model on each of several clusters, for `sagemaker-dist advise`.

    python -m smdist.modelparallel.planner.compare_clusters < request.json > answer.json

The request has `file` (path of the model file), `clusters` (list of clusters as in `--cluster`),
`global_batch` (samples of a step over all replicas, or null for the batch of `example()` on each
replica) and `precision` (a name of `PRECISIONS`). The answer has `parameters`,
`batch_per_replica`, `assumptions` and, in the order of the clusters, `results`: a layout with its
prediction, or the fields of the error that says why there is none. The answer is the last line;
each line before it is an object with `progress`, a sentence for the terminal.

The model is captured for two sizes of microbatch. Costs are estimated once for each kind of device;
only the search is repeated for each cluster.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.layout import (
    PRECISIONS,
    LayoutSearch,
    Machine,
    TrainingNeeds,
    find_layout,
)
from smdist.modelparallel.core.layout.explain_layout import assumptions_of, rule_of
from smdist.modelparallel.core.layout.from_graph import MicrobatchCosts, layers_between
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
    sizes = _Sizes(model, batch)
    progress(f"{type(model).__name__} is recorded, in {time.perf_counter() - begin:.1f} s")
    needs = _needs(request, batch.size)
    clusters = [read_cluster(json.dumps(each)) for each in request["clusters"]]
    results = []
    assumed: list[str] = []
    for number, cluster in enumerate(clusters, 1):
        begin = time.perf_counter()
        machine = Machine(cluster=cluster)
        try:
            search = _search(sizes, machine, needs)
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
        "assumptions": list(dict.fromkeys(assumed)),
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

    Raises:
        CaptureError: The model's forward pass cannot be recorded.
    """

    def __init__(self, model: Any, batch: Batch) -> None:
        from smdist.modelparallel.torch.capture import CaptureError, capture

        self._recorded = [(1, capture(model, batch.microbatch(batch.size)))]
        larger = batch if batch.size > 1 else batch.repeated(2)
        try:
            self._recorded.append((larger.size, capture(model, larger.example)))
        except CaptureError:
            if batch.size > 1:
                raise
        self._known: dict[Device, list[MicrobatchCosts]] = {}

    def on(self, device: Device) -> tuple[MicrobatchCosts, MicrobatchCosts]:
        """Return graph and costs of both sizes; the same twice if only one could be recorded."""
        if device not in self._known:
            self._known[device] = [_costs(*each, device) for each in self._recorded]
        found = self._known[device]
        return found[0], found[-1]


def _costs(samples: int, captured: Captured, device: Device) -> MicrobatchCosts:
    from smdist.modelparallel.torch.measure import estimate

    costs = estimate(captured, device)
    return MicrobatchCosts(graph=captured.graph, costs=costs, samples=samples)


def _needs(request: dict[str, Any], batch_size: int) -> TrainingNeeds:
    number = request["global_batch"]
    batch = {"batch_per_replica": batch_size} if number is None else {"global_batch": number}
    # A graph does not say how layers are split, and offload is not measured here.
    precision = PRECISIONS[request["precision"]]
    return TrainingNeeds(**batch, precision=precision, tensor=1, offload=False)


def _search(sizes: _Sizes, machine: Machine, needs: TrainingNeeds) -> LayoutSearch:
    small, large = sizes.on(machine.cluster.device)
    return find_layout(layers_between(small, large, machine), machine, needs)


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
