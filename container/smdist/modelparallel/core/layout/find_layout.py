# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest layout, by branch and bound, with the best layout of each family.

Layouts are taken in the order of a lower bound on their time: computation alone, divided evenly.
Each family (the kinds of parallelism that are combined) remembers its fastest layout so far. A
layout whose bound is above that time is skipped, and so is its simulation once its stages are known
to take too long. Memory grows with the size of the microbatch, so that larger microbatches of a
layout that cannot fit are skipped.

The search is exhaustive: what is skipped cannot be faster. `find_fastest` skips more: all that
cannot be near the fastest layout of all families.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from smdist.modelparallel.core.layout.degrees import REPLICAS, Layout
from smdist.modelparallel.core.layout.layer_model import LayerModel
from smdist.modelparallel.core.layout.layout_evaluator import LayoutEvaluator, Verdict
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.misfits import nothing_fits
from smdist.modelparallel.core.layout.prediction import LayoutMisfit, Prediction
from smdist.modelparallel.core.layout.search_space import bases, sharded
from smdist.modelparallel.core.layout.training_needs import TrainingNeeds
from smdist.modelparallel.core.plan_errors import PlanError

NEARLY: Final = 0.01  # relative difference of times that counts as none
MOST_RANKS: Final = 16_384  # a search takes minutes on so many
BUSY: Final = 0.8  # share of a step that only computes, above which splits of layers are not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSearch:
    """Result of a search.

    Attributes:
        best: Fastest layout that fits in memory; of those within 1 % of it, the one whose time
            depends least on messages that computation hides.
        families: Fastest layout of each family that fits; `best` first, then the fastest first.
        misfits: For each family of which nothing fits, the layout that needs the least memory.
        num_layouts: Number of layouts in the space.
        num_predicted: Number of layouts whose step was computed.
    """

    best: Prediction
    families: tuple[Prediction, ...]
    misfits: tuple[LayoutMisfit, ...]
    num_layouts: int
    num_predicted: int


def why_whole(search: LayoutSearch) -> str:
    """Return the reason why splits of layers need not be tried; "" if they have to be.

    A split of layers computes as much as before on all ranks together. It can save the rest of a
    step: activations that are computed again, waiting, and messages that are not hidden.

    Args:
        search: Search of layouts of whole layers.
    """
    share = search.best.time.compute / search.best.step_seconds
    if share < BUSY:
        return ""
    return (
        f"the fastest layout of whole layers computes for {100 * share:.0f} % of its step,"
        " which splits do not save"
    )


def find_layout(
    model: LayerModel, machine: Machine, needs: TrainingNeeds, *, known: LayoutSearch | None = None
) -> LayoutSearch:
    """Return the fastest layout of a model, and the fastest layout of each other family.

    Args:
        model: Layers of the model.
        machine: Cluster and its efficiency.
        needs: Batch, precision and fixed options of the training.
        known: Search of the same training before the model had split layers, so that layouts of
            whole layers are not tried again; None to try them.

    Raises:
        PlanError: No layout is possible: the batch or a fixed degree cannot be divided, or nothing
            fits in memory. The error says what would. Or the cluster has more ranks than a search
            takes.
    """
    return _searched(_FamilySearch(LayoutEvaluator(model, machine, needs)), known)


def find_fastest(
    model: LayerModel, machine: Machine, needs: TrainingNeeds, *, known: LayoutSearch | None = None
) -> LayoutSearch:
    """Return the same fastest layout as `find_layout`, in less time.

    Of the other families, only those within 1 % of it have to be there, and "replicas" if they fit.

    Args:
        model, machine, needs, known: As in `find_layout`.

    Raises:
        PlanError: As in `find_layout`.
    """
    return _searched(_FastestSearch(LayoutEvaluator(model, machine, needs)), known)


def _searched(search: _FamilySearch, known: LayoutSearch | None) -> LayoutSearch:
    evaluator = search.evaluator
    ranks = evaluator.machine.cluster.size
    if ranks > MOST_RANKS:
        what, why = f"the cluster has {ranks:,} ranks", f"a search takes at most {MOST_RANKS:,}"
        hint = "Plan for fewer hosts; more hosts can have more replicas of the same layout"
        raise PlanError(what, why, hint, about="num_hosts", kind="too_large")
    if known is not None:
        search.found = {each.layout.family: each for each in known.families}
        search.fastest = min(each.seconds_per_sample for each in known.families)
    search.run(least_tensor=1 if known is None else 2)
    families = sorted(search.found.values(), key=_order)
    misfits = [] if known is None else [*known.misfits]
    misfits += search.misfits()
    if not families:
        raise nothing_fits(evaluator.model, evaluator.machine, evaluator.needs, misfits)
    best = _most_certain(families)
    families = [best, *(each for each in families if each is not best)]
    return LayoutSearch(
        best=best,
        families=tuple(families),
        misfits=tuple(misfits),
        num_layouts=search.num_layouts + (0 if known is None else known.num_layouts),
        num_predicted=search.num_predicted + (0 if known is None else known.num_predicted),
    )


def _order(each: Prediction) -> tuple[float, int, int, int, int, int]:
    """Return the sort key of predictions: faster first, then the simpler layout."""
    layout = each.layout
    simple = (layout.offload, layout.tensor, layout.pipeline, layout.shard_degree)
    return (each.seconds_per_sample, *simple, layout.num_microbatches)


def _most_certain(families: list[Prediction]) -> Prediction:
    """Return the layout with the lowest upper end of its range, of those that are as fast.

    Layouts within 1 % of the fastest are as fast, since no prediction is that exact. The upper end
    of the range assumes that no message is hidden: a layout that sends less is a safer choice.
    """
    fast = families[0].seconds_per_sample * (1 + NEARLY)
    near = [each for each in families if each.seconds_per_sample <= fast]
    return min(near, key=lambda each: each.high_seconds / each.layout.samples)


@dataclass(slots=True)
class _FamilySearch:
    """State of one search.

    Attributes:
        evaluator: Evaluator of layouts.
        found: Fastest layout so far of each family.
        full: Leanest layout so far of each family that does not fit.
        smallest_full: Smallest microbatch with which a layout cannot fit, by its other choices.
        fastest: Seconds of a sample of the fastest layout so far.
        num_layouts: Layouts in the space.
        num_predicted: Layouts whose step was computed.
    """

    evaluator: LayoutEvaluator
    found: dict[str, Prediction] = field(default_factory=dict)
    full: dict[str, Layout] = field(default_factory=dict)
    smallest_full: dict[Layout, int] = field(default_factory=dict)
    fastest: float = float("inf")
    num_layouts: int = 0
    num_predicted: int = 0

    def run(self, *, least_tensor: int) -> None:
        """Try all layouts, in the order of their lower bounds.

        Args:
            least_tensor: Smallest number of ranks that split a layer.
        """
        evaluator = self.evaluator
        needs = evaluator.needs
        every = bases(evaluator.model, evaluator.machine, needs, least_tensor=least_tensor)
        started = [
            (evaluator.least_seconds(base) / base.samples, base.microbatch, at, base)
            for at, base in enumerate(every)
        ]
        for least, _, _, base in sorted(started, key=lambda each: each[:3]):
            for layout in sharded(base, needs):
                self.num_layouts += 1
                family = layout.family
                if least < self.limit(family):
                    self._try(layout, self.found.get(family))

    def limit(self, family: str) -> float:
        """Return the seconds of a sample below which a layout of a family has to be predicted."""
        known = self.found.get(family)
        return float("inf") if known is None else known.seconds_per_sample

    def _try(self, layout: Layout, known: Prediction | None) -> None:
        """Predict one layout, and keep it if it is the fastest of its family."""
        key = _without_microbatch(layout)
        if layout.microbatch >= self.smallest_full.get(key, layout.microbatch + 1):
            return
        below = self.limit(layout.family) * layout.samples
        prediction = self.evaluator.predict(layout, below=below)
        self.num_predicted += 1
        if prediction is Verdict.FULL:
            self.smallest_full[key] = layout.microbatch
            self._note_full(layout)
        elif isinstance(prediction, Prediction) and (
            known is None or _order(prediction) < _order(known)
        ):
            self.found[layout.family] = prediction
            self.fastest = min(self.fastest, prediction.seconds_per_sample)

    def _note_full(self, layout: Layout) -> None:
        """Remember the layout of its family that needs the least memory, by its options."""
        known = self.full.get(layout.family)
        if known is None or _leanness(layout) < _leanness(known):
            self.full[layout.family] = layout

    def misfits(self) -> Iterator[LayoutMisfit]:
        """Yield the leanest layout of each family of which nothing fits."""
        for family, layout in self.full.items():
            if family not in self.found:
                misfit = self.evaluator.misfit(layout)
                if misfit is not None:
                    yield misfit


class _FastestSearch(_FamilySearch):
    """Search that leaves out layouts of any family which are not near the fastest one."""

    def limit(self, family: str) -> float:
        """Return the seconds of a sample below which a layout of a family has to be predicted."""
        own = super().limit(family)
        if family == REPLICAS and own == float("inf"):
            return own
        return min(own, self.fastest * (1 + 2 * NEARLY))


def _without_microbatch(layout: Layout) -> Layout:
    fields = {name: getattr(layout, name) for name in Layout.__dataclass_fields__}
    # Microbatches in flight are bounded by the pipeline; fewer microbatches may hold fewer.
    few = min(layout.num_microbatches, 4 * layout.pipeline * layout.virtual_stages)
    fields["num_microbatches"] = few if layout.pipeline > 1 else 1
    return Layout(**{**fields, "microbatch": 1})


def _leanness(layout: Layout) -> tuple[int, int, int, int, int]:
    """Return a sort key: layouts that need less memory come first, in most cases."""
    kinds = {"full": 0, "selective": 1, "every_8th": 2, "none": 3}
    split = layout.pipeline * layout.tensor * layout.shard_degree
    kept = 0 if layout.offload else 1
    return (layout.microbatch, kept, kinds[layout.checkpointing], -split, layout.virtual_stages)
