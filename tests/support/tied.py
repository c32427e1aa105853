# SPDX-License-Identifier: Apache-2.0
"""Small model whose first and last layer share a weight, as the stages of one rank."""

from dataclasses import dataclass

import torch
from torch import nn
from zoo import Specimen

from smdist.modelparallel.core.placement import Placement, place
from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.torch.capture import Captured, capture
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.session.process_groups import make_groups

VOCABULARY = 11
IDS = torch.arange(16).view(8, 2) % VOCABULARY


class Tied(nn.Module):
    """Model from ids to scores; `unused` never has a gradient."""

    def __init__(self, width=6):
        super().__init__()
        self.first = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, VOCABULARY, bias=False)
        self.unused = nn.Linear(2, 2)
        self.last.weight = self.first.weight

    def forward(self, ids):
        x = self.first(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(self.norm(x))


def tied(seed=0, **more):
    """Return the model, with the same values for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tied(**more)


def specimen(seed=0):
    """Return the model as a specimen of the zoo."""
    return Specimen(model=tied(seed), batch=(IDS,))


@dataclass(kw_only=True)
class Share:
    """Part of a model on one rank."""

    model: nn.Module
    captured: Captured
    placement: Placement
    schedule: object
    groups: object
    stages: dict

    @property
    def pipeline(self):
        return self.groups.of(Axis.PP)


def share(model, example, stage_of, *, size, degree, schedule="1f1b", microbatches=2, virtual=1):
    """Cut a model on every rank; `stage_of` maps units to stages."""
    captured = capture(model, example)
    placement = place(captured.graph, stage_of)
    made = make_schedule(
        schedule, num_ranks=degree, num_microbatches=microbatches, virtual_stages=virtual
    )
    groups = make_groups(RankLayout(size=size, pipeline_parallel_degree=degree))
    own = made.stages_of[groups.pp_rank]
    return Share(
        model=model,
        captured=captured,
        placement=placement,
        schedule=made,
        groups=groups,
        stages={stage: StageModule(captured, placement, stage) for stage in own},
    )


HALVES = {"first": 0, "layers.0": 0, "layers.1": 0, "layers.2": 1, "norm": 1, "last": 1}
