# SPDX-License-Identifier: Apache-2.0
"""Model on pipelines of several replicas, and the same model in one process on the whole batch.

rank 0, rank 1     replica 0: microbatches 0 and 1 of 4
rank 2, rank 3     replica 1: microbatches 2 and 3
"""

import math

from splitting import Pipeline, loss_of, parts_of, plain_step
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.torch.capture import arguments_of, capture
from smdist.modelparallel.torch.executor import Executor
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.randomness import RngStream
from smdist.modelparallel.torch.replicas import Replicas
from smdist.modelparallel.torch.session.process_groups import make_groups
from smdist.modelparallel.torch.verification.verify_request import placement_of


class Replicated:
    """Stages of this rank, with their executor and gradient reduction."""

    def __init__(self, specimen, pipeline, size, *, stage_of=None, **options):
        self.pipeline = pipeline
        self.groups = make_groups(
            RankLayout(size=size, pipeline_parallel_degree=pipeline.num_ranks)
        )
        count = pipeline.num_microbatches
        every = parts_of(specimen, count * self.groups.rdp_size)
        self.first = count * self.groups.rdp_rank
        self.parts = every[self.first :][:count]
        self.model = specimen.model
        self.captured = capture(specimen.model, self.parts[0])
        self.placement = placement_of(self.captured.graph, pipeline.num_stages, stage_of)
        schedule = pipeline.actions()
        self.stages = {
            number: StageModule(self.captured, self.placement, number)
            for number in schedule.stages_of[self.groups.pp_rank]
        }
        self.replicas = Replicas(
            self.stages, self.placement, schedule, self.groups, graph=self.captured.graph,
            **options,
        )  # fmt: skip
        self.replicas.prepare()
        self.executor = Executor(
            self.stages, self.placement, schedule, self.groups.of(Axis.PP),
            hooks=self.replicas.hooks,
        )  # fmt: skip

    def step(self, *, seed=0, scale=1.0, backward=True):
        """Run a whole step; return the losses on the ranks that have them."""
        if not backward:
            losses = self.run(seed=seed, backward=False)
            self.replicas.rest()
            return losses
        self.replicas.begin()
        losses = self.run(seed=seed, scale=scale)
        self.replicas.finish()
        return losses

    def run(self, *, seed=0, scale=1.0, backward=True):
        """Run the executor alone."""

        def feed(microbatch, call):
            found = loss_of(call(arguments_of(self.parts[microbatch])))
            return found.detach(), [(found * scale / len(self.parts), None)]

        def draws(microbatch):
            return RngStream(seed=seed, microbatch=self.first + microbatch)

        return self.executor.run(feed, draws=draws, backward=backward)

    def gradients(self):
        return {name: whole(p.grad) for name, p in self.replicas.parameters.items()}

    def values(self):
        return {name: whole(p.detach()) for name, p in self.replicas.parameters.items()}


def whole(tensor):
    """Gather a tensor that may be sharded; collective."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return None if tensor is None else tensor.clone()


def furthest(expected, found):
    """Return the largest relative difference of the found values, and its name."""
    assert found
    return max(
        (_apart(expected[name], each), name) for name, each in found.items() if each is not None
    )


def _apart(expected, found):
    error = ((found - expected).norm() / (expected.norm() + 1e-12)).item()
    return math.inf if math.isnan(error) else error


__all__ = ["Pipeline", "Replicated", "furthest", "plain_step", "whole"]
