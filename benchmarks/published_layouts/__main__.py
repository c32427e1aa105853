# SPDX-License-Identifier: Apache-2.0
"""Table of published trainings beside their predictions, and beside our own layouts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.published_layouts.runs import RUNS, Run
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout import (
    LayoutEvaluator,
    Machine,
    Prediction,
    TrainingNeeds,
    find_layout,
    transformer,
)

GIB: Final = 1 << 30
USABLE: Final = 0.95  # the published runs use more than the share that the planner leaves free
SEARCHED: Final = 1024  # ranks up to which our own layout is searched, for the time that it takes
_INSIDE: Final = {"A100": 300e9, "H100": 450e9}
# Bytes per second of one rank: DGX A100 has 8 cards of 200 Gbit/s, the H100 hosts 400 Gbit/s a GPU,
# ml.p4d.24xlarge 400 Gbit/s for all.
_ACROSS: Final = {"A100 80 GB": 25e9, "A100 40 GB": 6.25e9, "H100 96 GB": 50e9}
_SPEED: Final = {  # FLOP/s, bytes per second of the memory
    "A100 80 GB": (312e12, 2.039e12),
    "A100 40 GB": (312e12, 1.555e12),
    "H100 96 GB": (989.4e12, 2.4e12),
}


def machine_of(run: Run) -> Machine:
    """Return the hosts of a published run."""
    kind, gib, _ = run.machine.split()
    flops, memory = _SPEED[run.machine]
    world = run.layout.world_size
    ranks = min(8, world)
    return Machine(
        cluster=Cluster(
            num_hosts=world // ranks,
            ranks_per_host=ranks,
            inside=Link(latency_seconds=1e-5, bytes_per_second=_INSIDE[kind]),
            across=Link(latency_seconds=3e-5, bytes_per_second=_ACROSS[run.machine]),
            device=Device(
                name=f"NVIDIA {kind}",
                memory_bytes=int(float(gib) * 1e9 if gib == "80" else int(gib) * GIB * USABLE),
                flops_per_second=flops,
                bytes_per_second=memory,
            ),
        )
    )


def needs_of(run: Run) -> TrainingNeeds:
    """Return the batch of a published run; the others reduce gradients in each microbatch."""
    return TrainingNeeds(global_batch=run.layout.samples, reduction="microbatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Published run with its prediction, and our own layout.

    Attributes:
        run: The run.
        predicted: Prediction of the layout as it was run; None if it is judged not to fit.
        ours: Our own layout for the same machines and batch; None if none was found.
    """

    run: Run
    predicted: Prediction | None
    ours: Prediction | None

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted tokens per second of one accelerator."""
        if self.predicted is None:
            return None
        samples = 1 / self.predicted.seconds_per_sample / self.run.layout.world_size
        return samples * self.run.config.sequence

    @property
    def ratio(self) -> float | None:
        """Predicted over published throughput; None if one of them is not known."""
        if self.tokens_per_second is None or self.run.tokens_per_second is None:
            return None
        return self.tokens_per_second / self.run.tokens_per_second

    def cells(self) -> list[str]:
        """Return the row of the table."""
        run = self.run
        published = "-" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}"
        predicted = "-" if self.tokens_per_second is None else f"{self.tokens_per_second:,.0f}"
        memory = "no" if self.predicted is None else f"{self.predicted.memory.total / GIB:.1f} GiB"
        ours = "-"
        if self.ours is not None and self.predicted is not None:
            gain = self.predicted.seconds_per_sample / self.ours.seconds_per_sample
            ours = f"{self.ours.layout.family}, {gain:.2f} times as fast"
        elif self.ours is not None:
            ours = self.ours.layout.family
        return [
            run.name, "yes" if run.is_held_out else "no", run.layout.family, memory, published,
            predicted, "-" if self.ratio is None else f"{self.ratio:.2f}", ours,
        ]  # fmt: skip


COLUMNS: Final = [
    "run", "held out", "layout as run", "fits", "published tokens/s", "predicted", "ratio",
    "our layout in the simulator",
]  # fmt: skip


def judged(run: Run) -> Judged:
    """Predict one run as it was run, and search for our own layout."""
    model, machine, needs = transformer(run.config), machine_of(run), needs_of(run)
    predicted = LayoutEvaluator(model, machine, needs).predict(run.layout)
    ours = None
    try:
        if run.layout.world_size <= SEARCHED:
            ours = find_layout(model, machine, needs).best
    except OptionError:
        pass
    return Judged(
        run=run, predicted=predicted if isinstance(predicted, Prediction) else None, ours=ours
    )


def main() -> None:
    """Print the table, and how many rows are within 25 %."""
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    rows = []
    for run in RUNS:
        rows.append(judged(run))
        print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
    for held_out in (False, True):
        ratios = [
            row.ratio for row in rows if row.ratio is not None and row.run.is_held_out is held_out
        ]
        near = sum(0.75 <= ratio <= 1.25 for ratio in ratios)
        kind = "held out" if held_out else "not held out"
        print(f"{kind}: {near} of {len(ratios)} within 25 %, median ratio {median(ratios):.2f}")
    fitting = sum(row.predicted is not None for row in rows)
    print(f"{fitting} of {len(rows)} are judged to fit as they were run")


if __name__ == "__main__":
    main()
