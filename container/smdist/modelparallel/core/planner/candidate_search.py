# SPDX-License-Identifier: Apache-2.0
"""Search for the fastest candidate, which simulates as few candidates as possible.

A candidate is a combination of parallel degrees, schedule and number of microbatches. Candidates
are in a priority queue, ordered by a lower bound on their time: first a bound for all partitions,
then a bound for one partition, then the simulated time. The first candidate that leaves the queue
with a simulated time is the fastest, because the bounds of all others are larger.

Among equally fast candidates, a candidate with fewer ranks in a pipeline is preferred, then a
candidate with fewer microbatches, then the first in the order of `candidates`. So the same problem
always has the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.planner.candidate_pipeline import CandidatePipeline
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples
from smdist.modelparallel.core.planner.evaluate import Evaluator, Misfit, SimulatedCandidate
from smdist.modelparallel.core.planner.problem import Problem

Stages = tuple[tuple[str, ...], ...]
_Key = tuple[float, int, int, int]
_Step = Candidate | tuple[Candidate, CandidatePipeline] | SimulatedCandidate
_Heap = list[tuple[_Key, int, _Step]]


class Search:
    """Search for the fastest of several candidates of one problem.

    A candidate is a combination of parallel degrees, schedule and number of microbatches.

    Attributes:
        evaluator: Evaluator of candidates.
        misfits: Candidates that cannot run, such as for lack of memory, with reasons.
        trials: Fastest simulated step of each candidate that can run.
        least: Seconds per sample of each candidate: the simulated time, or a lower bound if the
            candidate was not simulated.
    """

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self.evaluator = Evaluator(problem, samples)
        self.misfits: dict[Candidate, Misfit] = {}
        self.trials: dict[Candidate, SimulatedCandidate] = {}
        self.least: dict[Candidate, float] = {}
        self._fitted: dict[tuple[Candidate, Stages], SimulatedCandidate | None] = {}
        self._serial = count()

    def best(self, candidates: Iterable[Candidate]) -> SimulatedCandidate | None:
        """Return the fastest candidate that fits in memory; None if no candidate can run."""
        heap: _Heap = []
        for candidate in candidates:
            self._push(heap, candidate, self.evaluator.at_least(candidate), candidate)
        while heap:
            _, _, step = heappop(heap)
            if isinstance(step, SimulatedCandidate):
                return step
            candidate = step if isinstance(step, Candidate) else step[0]
            try:
                self._advance(heap, step)
            except OptionError as error:
                self.misfits[candidate] = Misfit(candidate=candidate, why=error)
        return None

    def _advance(self, heap: _Heap, step: Candidate | tuple[Candidate, CandidatePipeline]) -> None:
        """Divide the model into stages for a candidate, or simulate a candidate that has stages.

        The results are added to the queue. A candidate is a combination of parallel degrees,
        schedule and number of microbatches.

        Args:
            heap: Queue of candidates, ordered by lower bounds on their seconds per sample.
            step: A candidate without stages, or a candidate with its stages.

        Raises:
            OptionError: The candidate cannot run.
        """
        if isinstance(step, Candidate):
            splits = list(self.evaluator.splits(step))
            if not splits:
                self.misfits[step] = Misfit(candidate=step)
            for least, cut in splits:
                self._push(heap, step, least, (step, cut))
            return
        candidate, cut = step
        trial = self._fit(candidate, cut)
        if trial is None:
            self.misfits.setdefault(candidate, Misfit(candidate=candidate))
            return
        self.misfits.pop(candidate, None)
        known = self.trials.get(candidate)
        if known is None or trial.seconds_per_sample < known.seconds_per_sample:
            self.trials[candidate] = trial
        self._push(heap, candidate, trial.seconds_per_sample, trial)

    def forget(self, num_microbatches: int) -> None:
        """Delete the results of all candidates that split a batch into this many microbatches.

        Call this after the costs of such microbatches were measured again.
        """
        for known in (self.misfits, self.trials, self.least):
            for candidate in [c for c in known if c.num_microbatches == num_microbatches]:
                del known[candidate]
        for key in [k for k in self._fitted if k[0].num_microbatches == num_microbatches]:
            del self._fitted[key]

    def _fit(self, candidate: Candidate, cut: CandidatePipeline) -> SimulatedCandidate | None:
        key = (candidate, cut.partition.stages)
        if key not in self._fitted:
            self._fitted[key] = self.evaluator.fit(candidate, cut)
        return self._fitted[key]

    def _push(self, heap: _Heap, candidate: Candidate, least: float, step: _Step) -> None:
        self.least[candidate] = least
        order = (candidate.pipeline, candidate.num_microbatches, candidate.preference)
        heappush(heap, ((rounded(least), *order), next(self._serial), step))


def rounded(seconds: float) -> float:
    """Return a time rounded to 9 significant digits, so that times can be compared.

    Without this, a rounding error could decide which of two equal times is shorter.
    """
    return float(f"{seconds:.9g}")
