# SPDX-License-Identifier: Apache-2.0
"""Plan that remembers the problem it solves, so that it can be drawn."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core import plan as core
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.planner import Problem
from smdist.modelparallel.core.planner.resimulate import replay
from smdist.modelparallel.picture.picture import Picture
from smdist.modelparallel.picture.plan_sheet import sheet_of


class Plan(core.Plan):
    """Plan of a model's split over ranks, with a method to draw it.

    All fields and other methods are those of the class `Plan` in smdist.modelparallel.core.
    """

    _problem: Problem | None = None  # no field, so files and comparisons leave it out

    @property
    def problem(self) -> Problem | None:
        """Problem that the planner solved; None if the plan was loaded or edited."""
        return self._problem

    @classmethod
    def of(cls, found: core.Plan, problem: Problem, *notes: Note) -> Plan:
        """Return a plan that the planner found, with more notes.

        Args:
            found: The plan.
            problem: Problem that the planner solved.
            notes: Notes to append to those of the plan, each once.
        """
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        plan = cls(**{**values, "notes": tuple(dict.fromkeys([*found.notes, *notes]))})
        object.__setattr__(plan, "_problem", problem)
        return plan

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the stages, the memory of each rank and the timeline of one step.

        Args:
            path: File to write the picture to, such as "plan.png"; None writes no file.

        Returns:
            The picture; a notebook displays it.

        Raises:
            OptionError: The plan was loaded or edited, so the times of its modules are not known.
                Or the file's ending names no picture format.
            SetupError: matplotlib is not installed.
        """
        if self._problem is None or self.forecast is None or self.is_stale:
            raise OptionError(
                f"the plan of {self.model} cannot be drawn",
                "it was loaded or edited, so the time and memory of its modules are not known",
                "Draw the plan that smp.forecast(plan, model, example, world) returns",
                kind="no_costs",
            )
        done = replay(self, self._problem)
        costs = done.view.costs
        seconds = {unit: costs.of(unit).seconds for units in self.stages for unit in units}
        picture = Picture(sheet_of(self, self.forecast, seconds, done.trial.timeline))
        if path is not None:
            picture.save(path)
        return picture
