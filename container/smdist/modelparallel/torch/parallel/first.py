# SPDX-License-Identifier: Apache-2.0
"""The first step: plan, cut, print the plan, and let everything happen that waited for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.capture import arguments_of, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.optimizer.rewriting import Renaming
from smdist.modelparallel.torch.parallel.cut import cut
from smdist.modelparallel.torch.parallel.planned import Sliced, given_plan, groups_of, planned
from smdist.modelparallel.torch.parallel.state import State, probe
from smdist.modelparallel.torch.parallel.together import BEFORE, ending_all, together
from smdist.modelparallel.torch.parallel.work import Work, example_of


def cut_for_work(state: State, work: Work) -> None:
    """Cut the model for a step's batch, in the modes of the place where it is called.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, is_there = state.model, False

    def cut_into(number: int) -> Any:
        arguments = probe(state, work, work.cut(number)[0], lambda arguments: arguments)
        return example_of(arguments, model)

    def prepare(arguments: Arguments) -> None:
        nonlocal is_there
        is_there = True

        def read() -> Batch:
            example = example_of(arguments, model)
            size = work.size() or Batch.of(example).size
            return Sliced(example=example, size=size, cut_into=cut_into)

        prepare_for(state, read)

    try:
        probe(state, work, work.cut(1)[0], prepare)
    except BaseException:
        if is_there:
            raise
        with together(BEFORE):  # where the others are by now
            raise


def prepare_for(state: State, read: Callable[[], Batch]) -> None:
    """Cut the model for a batch of one replica; collective over the world.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, settings = state.model, state.settings
    with together(BEFORE):
        batch, given = read(), given_plan(settings)
    plan = given or planned(model, batch, settings)
    groups = groups_of(plan, settings)
    with together("the capture of the model"):
        example = batch.microbatch(plan.num_microbatches)
        captured = capture(model, example, opened=plan.opened)
        plan.check(captured.graph)
        renaming = Renaming(model)
    with ending_all(groups, "the cut of the model"):
        split = cut(captured, plan, groups, settings, is_loaded=state.is_loaded)
        key = signature(split.skeleton, arguments_of(captured.example))
        split.keep(key, (split.captured, split.placement))
        state.split = split
        renaming.apply(split.stages)
    if session.current().rank == 0:
        _show(plan)
    with ending_all(groups, "what waited for the cut of the model"):
        state.catch_up()


def _show(plan: Plan) -> None:
    """Print what was decided, in short."""
    head, *parts = plan.explain().split("\n\n")
    stages = [part for part in parts if part.startswith("Stages")]
    sys.stderr.write("\n\n".join([head, *stages]).rstrip() + "\n")
