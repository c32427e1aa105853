# SPDX-License-Identifier: Apache-2.0
"""Benchmark of cuts of Keras models: slowest stage over the mean of stages, beside all cuts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from benchmarks.balance.methods import LINK, OURS, imbalances, is_best
from benchmarks.harness.report import machine, save, table
from benchmarks.keras_pipeline.model import batch, gpt
from sagemaker_dist import ModelParallel
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs, StateBytes
from smdist.modelparallel.core.default_links import PROCESSES
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.partition import assigned
from smdist.modelparallel.tensorflow.keras_capture import capture, graph_of
from smdist.modelparallel.tensorflow.keras_planning.keras_plan import PlanInput, plan_for
from smdist.modelparallel.tensorflow.keras_planning.layer_times import measure

IMAGES: Final = ("ResNet50", "MobileNetV3Small", "EfficientNetB0")
MODELS: Final = (*IMAGES, "GPT")
EQUAL: Final = "equal layers"
COLUMNS: Final = ["model", "units", "stages", OURS, "its plan", EQUAL, "no cut is more even"]
MARKS: Final = {True: "yes", False: "no", None: "-"}
MICROBATCHES: Final = 8


@dataclass
class Row:
    """Row of the table: one model, divided into one number of stages."""

    model: str
    num_units: int
    num_stages: int
    ours: float
    of_plan: float
    equal_layers: float
    is_best: bool | None

    def cells(self) -> list[str]:
        loads = [f"{each:.3f}" for each in (self.ours, self.of_plan, self.equal_layers)]
        return [
            self.model, str(self.num_units), str(self.num_stages), *loads, MARKS[self.is_best]
        ]  # fmt: skip


def main() -> None:
    arguments = _arguments()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = [row for model in arguments.models for row in _rows(model, arguments)]
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}; TensorFlow {tf.__version__}, Keras {keras.__version__}, one core\n")
    print(text)
    save("keras_balance", text, [asdict(row) for row in rows])
    tried = [row for row in rows if row.is_best is not None]
    print(f"\n{sum(bool(row.is_best) for row in tried)} of {len(tried)} times no cut is more even")


def _rows(name: str, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each number of stages; the layers of the model are measured once."""
    model, example = _model(name, arguments)
    program = capture(model, example, training=True)
    graph, costs = graph_of(program, model), measure(program)
    for num_stages in arguments.stages:
        found = imbalances(graph, costs, num_stages)
        row = Row(
            model=name, num_units=len(graph.units), num_stages=num_stages, ours=found[OURS],
            of_plan=_of_plan(graph, costs, num_stages), equal_layers=found[EQUAL],
            is_best=is_best(graph, costs, num_stages),
        )  # fmt: skip
        print(" ".join(row.cells()), flush=True)
        yield row


def _of_plan(graph: Graph, costs: Costs, num_stages: int) -> float:
    """Return the largest load of a stage in the planner's cut, over the load of equal stages.

    The planner minimizes the time of the whole step, so that this may be above the least load.
    """
    given = PlanInput(
        at=lambda *_: (graph, costs), batch_size=MICROBATCHES, marks={}, state=StateBytes()
    )
    cluster = Cluster(ranks_per_host=num_stages, inside=PROCESSES, across=PROCESSES)
    options = ModelParallel(pipeline_parallel_degree=num_stages, microbatches=MICROBATCHES)
    plan = plan_for(given, options, cluster)
    loads = assigned(graph, costs, plan.stage_of, num_stages=num_stages, link=LINK).loads
    share = sum(costs.of(node.name).seconds for node in graph.nodes) / num_stages
    return float(max(loads) / share)


def _model(name: str, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return a model and one microbatch."""
    keras.utils.set_random_seed(0)
    if name not in IMAGES:
        return gpt(), batch()[0][:1]
    size = arguments.image_size
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3))
    return model, np.zeros([arguments.rows, size, size, 3], "float32")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("keras_balance", description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rows", type=int, default=2, help="images of a microbatch")
    parser.add_argument("--image-size", type=int, default=96, help="pixels on each side")
    return parser.parse_args()


if __name__ == "__main__":
    main()
