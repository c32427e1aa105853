# SPDX-License-Identifier: Apache-2.0
"""Best layout of one model on each of several clusters, for `sagemaker-dist advise`.

    python -m smdist.modelparallel.planner.compare_clusters < request.json > answer.json

The request has `file` (path of the model file), `clusters` (list of clusters as in `--cluster`),
`global_batch` (samples of a step over all replicas, or null for the batch of `example()` on each
replica) and `precision` (a name of `PRECISIONS`). The answer has `parameters`,
`batch_per_replica`, `assumptions` and, in the order of the clusters, `results`: a layout with its
prediction, or the fields of the error that says why there is none.

The model is captured once, with one sample; only costs and search are repeated for each cluster.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import DistError, OptionError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.layout import (
    PRECISIONS,
    LayoutSearch,
    Machine,
    TrainingNeeds,
    find_layout,
)
from smdist.modelparallel.core.layout.explain_layout import rule_of
from smdist.modelparallel.core.layout.from_graph import layers_of
from smdist.modelparallel.planner.cluster_json import read_cluster
from smdist.modelparallel.planner.model_file import ModelFile
from smdist.modelparallel.planner.stdout_redirect import stdout_to_stderr

_FAILED: Final = 1
_USAGE: Final = 2


def main() -> int:
    """Answer the request on standard input, and return the exit status."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    try:
        request = json.loads(sys.stdin.read())
        with stdout_to_stderr():  # the model file may print
            answer = compare(request)
    except DistError as error:
        json.dump({"error": error.as_dict()}, sys.stdout)
        return _USAGE if isinstance(error, OptionError) else _FAILED
    json.dump(answer, sys.stdout)
    return 0


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request.

    Args:
        request: Request as in the module's description.

    Raises:
        OptionError: The model file or the model is wrong.
    """
    from smdist.modelparallel.torch.capture import capture
    from smdist.modelparallel.torch.program.batch import Batch

    file = ModelFile(Path(request["file"]))
    model, batch = file.model(with_values=False), Batch.of(file.example("cpu"))
    captured = capture(model, batch.microbatch(batch.size))
    needs = _needs(request, batch.size)
    clusters = [read_cluster(json.dumps(each)) for each in request["clusters"]]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "batch_per_replica": batch.size,
        "assumptions": list(dict.fromkeys(_assumptions(clusters))),
        "results": [_result(captured, cluster, needs) for cluster in clusters],
    }


def _needs(request: dict[str, Any], batch_size: int) -> TrainingNeeds:
    number = request["global_batch"]
    batch = {"batch_per_replica": batch_size} if number is None else {"global_batch": number}
    # A graph does not say how layers are split, and offload is not measured here.
    precision = PRECISIONS[request["precision"]]
    return TrainingNeeds(**batch, precision=precision, tensor=1, offload=False)


def _assumptions(clusters: list[Cluster]) -> Iterator[str]:
    for cluster in clusters:
        yield from Machine(cluster=cluster).assumptions()


def _result(captured: Any, cluster: Cluster, needs: TrainingNeeds) -> dict[str, Any]:
    """Return the best layout on one cluster, or the fields of the error."""
    from smdist.modelparallel.torch.measure import estimate

    machine = Machine(cluster=cluster)
    costs = estimate(captured, cluster.device)
    try:
        layers = layers_of(captured.graph, costs, machine, samples=1)
        return _document(find_layout(layers, machine, needs))
    except OptionError as error:
        return {"error": error.as_dict()}


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
