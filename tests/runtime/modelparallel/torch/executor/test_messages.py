# SPDX-License-Identifier: Apache-2.0
"""Whatever a value is, it arrives: on our backend and on Gloo, as it lay in memory."""

import pytest
import torch
import torch.distributed as dist
import zoo
from splitting import Pipeline, Split, merged, plain_step
from torch import nn

from smdist.modelparallel.torch.verification.compare import worst

TOLERANCE = 1e-6
PIPELINES = (
    Pipeline(schedule="1f1b"),
    Pipeline(schedule="zero_bubble_v", virtual_stages=2),
)


class Making(nn.Module):
    """Values of many kinds."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x):
        y = self.linear(x)
        return {
            "float": y,
            "double": y.double(),
            "half": y.bfloat16(),
            "complex": torch.complex(y, x),
            "conjugate": torch.complex(x, y).conj(),
            "turned": y.unflatten(1, (2, 3)).transpose(0, 2),
            "wide": y.sum(1, keepdim=True).expand(-1, 6),
            "one": y.sum(),
            "none": y[:, :0],
            "flags": y > 0,
            "numbers": (y * 10).long(),
            "small": (y * 10).to(torch.int8),
            "frozen": self.frozen(x),
            "unused": self.linear(x + 1),
        }


class Taking(nn.Module):
    """Uses all but one of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.seen = ()

    def forward(self, v):
        self.seen = v["turned"].stride(), v["wide"].shape, v["none"].shape
        y = self.linear(v["float"]) * v["one"] + v["double"].float() * v["flags"]
        y = y + v["half"].float() * v["numbers"] + v["small"] + v["frozen"] + v["wide"]
        y = y + v["turned"].transpose(0, 2).flatten(1) + v["none"].sum()
        return y + v["complex"].imag * v["complex"].real + v["conjugate"].imag


class Passing(nn.Module):
    """Hands most of them on as they are."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, v):
        return {**v, "float": self.linear(v["float"])}


class Values(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.make = Making()
        self.middle = nn.ModuleList(Passing() for _ in range(middle))
        self.take = Taking()

    def forward(self, x):
        v = self.make(x)
        for each in self.middle:
            v = each(v)
        return self.take(v)


@pytest.mark.parametrize("backend", ["smdist", "gloo"])
def test_values_of_all_kinds(world, backend):
    found = world.run(passing, backend, size=2, deadline=120)

    for number, pipeline in enumerate(PIPELINES):
        expected = plain_step(specimen(pipeline), pipeline.num_microbatches)
        ran = merged([rank[number][0] for rank in found])
        error = worst(expected.gradients, ran.gradients)

        assert error.error <= TOLERANCE, (pipeline, error)
        assert [a.item() for a in expected.losses] == pytest.approx(
            [a.item() for a in ran.losses], rel=TOLERANCE
        )


def test_a_value_lies_in_memory_as_it_did(world):
    """What is transposed stays so: what is chosen by the memory format is chosen as in one."""
    found = world.run(passing, "smdist", size=2, deadline=120)
    (seen,) = {rank[0][1] for rank in found if rank[0][1]}

    assert ((1, 3, 6), (2, 6), (2, 0)) == seen


def specimen(pipeline):
    with zoo.specimen.seeded(0):
        model = Values(pipeline.num_stages - 2)
        return zoo.Specimen(model=model, batch=(torch.randn(8, 6),))


def passing(rank, size, backend):
    torch.set_num_threads(1)
    group = dist.new_group(backend="gloo") if backend == "gloo" else None
    answers = []
    for pipeline in PIPELINES:
        split = Split(specimen(pipeline), pipeline, group)
        answers.append((split.step(), split.specimen.model.take.seen))
    return answers
