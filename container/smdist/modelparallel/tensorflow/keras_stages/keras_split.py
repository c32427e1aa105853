# SPDX-License-Identifier: Apache-2.0
"""Split of a Keras model over the ranks of a pipeline, by a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Placement, place
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.tensorflow.keras_capture import LayerProgram, capture, graph_of
from smdist.modelparallel.tensorflow.keras_capture.layer_paths import (
    all_variables,
    trained_variables,
)
from smdist.modelparallel.tensorflow.keras_capture.layer_program import variables_of
from smdist.modelparallel.tensorflow.keras_session import KerasSession
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch
from smdist.modelparallel.tensorflow.keras_stages.pipeline_run import RunLayout
from smdist.modelparallel.tensorflow.keras_stages.stage_function import Objective, StageFunction
from smdist.modelparallel.tensorflow.keras_stages.stage_parts import StagePart, parts_of

_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ReadyStages:
    """Stages for one shape of microbatches: their parts, and the functions of this rank."""

    layout: RunLayout
    functions: dict[int, StageFunction]


@dataclass(slots=True, kw_only=True)
class SplitKerasModel:
    """A Keras model whose layers are divided over the stages of a pipeline.

    Attributes:
        model: The whole model; this rank uses the variables of its stages alone.
        session: Session with the ranks.
        plan: Plan with the layers of each stage.
        placement: Stages of all steps in training.
        program: Forward pass of training, as it was recorded for the plan.
        objective: Function that computes the loss on the last stage.
        eagerly: True to run stages without tf.function.
        run: Function that is called in place of the model while it is recorded.
    """

    model: Any
    session: KerasSession
    plan: Plan
    placement: Placement
    program: LayerProgram
    objective: Objective
    eagerly: bool = False
    run: Any = None
    _ready: dict[_Key, ReadyStages] = field(default_factory=dict)
    _holders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _ties: list[tuple[int, Any, list[int]]] | None = None

    @property
    def trained(self) -> list[Any]:
        """Trained variables of the whole model."""
        return trained_variables(self.model)

    @property
    def rank_of(self) -> tuple[int, ...]:
        """World rank of each stage of this rank's pipeline."""
        pipeline = self.session.pipeline
        return tuple(pipeline[each] for each in self.plan.actions.rank_of)

    @property
    def own_stages(self) -> tuple[int, ...]:
        """Stages of this rank."""
        return tuple(s for s, rank in enumerate(self.rank_of) if rank == self.session.rank)

    def holders(self) -> dict[int, tuple[int, ...]]:
        """Return the stages that use each variable, by its id(); found once for the program."""
        if not self._holders:
            found: dict[int, set[int]] = {}
            for step in self.program.steps:
                for each in variables_of(step):
                    found.setdefault(id(each), set()).update(self.placement.stages[step.name])
            self._holders = {name: tuple(sorted(stages)) for name, stages in found.items()}
        return self._holders

    def ties(self) -> list[tuple[int, Any, list[int]]]:
        """Return number, variable and world ranks of each variable that several ranks use."""
        if self._ties is None:
            rank_of, holders = self.rank_of, self.holders()
            self._ties = []
            for number, variable in enumerate(all_variables(self.model)):
                stages = holders.get(id(variable), ())
                ranks = list(dict.fromkeys(rank_of[stage] for stage in stages))
                if len(ranks) > 1:
                    self._ties.append((number, variable, ranks))
        return self._ties

    def variables(self, stage: int) -> list[Any]:
        """Return the variables that a stage uses, in the order of the model."""
        holders = self.holders()
        return [each for each in all_variables(self.model) if stage in holders.get(id(each), ())]

    def own_variables(self) -> list[Any]:
        """Return the variables that the stages of this rank use, in the order of the model."""
        own, holders = set(self.own_stages), self.holders()
        return [each for each in all_variables(self.model) if own & set(holders.get(id(each), ()))]

    def home(self, variable: Any) -> int:
        """Return the first stage that uses a variable; the first of all if none does."""
        return min(self.holders().get(id(variable), (0,)))

    def stages(self, batch: PipelineBatch, *, training: bool) -> ReadyStages:
        """Return the stages for microbatches of the shape of a batch.

        Args:
            batch: One microbatch.
            training: True for the forward pass of training.
        """
        shapes = tuple((tuple(each.shape), each.dtype.name) for each in batch.inputs)
        key = (training, shapes)
        if key not in self._ready:
            self._ready[key] = self._prepared(batch, training=training)
        return self._ready[key]

    def _prepared(self, batch: PipelineBatch, *, training: bool) -> ReadyStages:
        program = capture(
            self.model, batch.microbatch_example, training=training,
            opened=frozenset(self.plan.opened), run=self.run,
        )  # fmt: skip
        graph = graph_of(program, self.model)
        known = set(self.plan.stage_of)
        unknown = [node.name for node in graph.units if node.name not in known]
        placement = place(
            graph,
            {**self._stages_of_unknown(unknown), **self._stages_of_known(graph)},
            num_stages=len(self.plan.stages),
        )
        parts = parts_of(program, placement)
        return ReadyStages(
            layout=RunLayout(
                parts=parts, rank_of=self.rank_of, rank=self.session.rank,
                reader=self.rank_of[0],
            ),
            functions={stage: self._function(parts[stage], program) for stage in self.own_stages},
        )  # fmt: skip

    def _stages_of_known(self, graph: Any) -> dict[str, int]:
        names = {node.name for node in graph.units}
        return {name: stage for name, stage in self.plan.stage_of.items() if name in names}

    def _stages_of_unknown(self, names: Iterable[str]) -> dict[str, int]:
        """Return the stages of layers that only another kind of pass calls, by an earlier call."""
        found = {}
        for name in names:
            first = name.partition("@")[0]
            if first not in self.plan.stage_of:
                raise OptionError(
                    f"layer {name!r} has no stage",
                    "it is called in this pass of the model, and not in the one that was planned",
                    "Call the same layers with training=True and training=False",
                    about=name,
                    kind="difference",
                )
            found[name] = self.plan.stage_of[first]
        return found

    def _function(self, part: StagePart, program: LayerProgram) -> StageFunction:
        regularized = [
            each
            for each in self.variables(part.stage)
            if each.trainable and each.regularizer is not None and self.home(each) == part.stage
        ]
        return StageFunction(part, program, regularized, self.objective, eagerly=self.eagerly)
