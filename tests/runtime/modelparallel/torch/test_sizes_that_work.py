# SPDX-License-Identifier: Apache-2.0
"""Sizes of microbatches that do not run, or have no memory, are left out, and the plan says so."""

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.torch.measure import measure
from smdist.modelparallel.torch.measure.memory_estimate import is_out_of_memory
from smdist.modelparallel.torch.planning import make_plan, sampler
from smdist.modelparallel.torch.planning.make_plan import forecast, plan
from smdist.modelparallel.torch.planning.sampler import Sampler
from smdist.modelparallel.torch.program.batch import Batch

KNOWN = Device(name="known", flops_per_second=1e12, bytes_per_second=1e11)


class Reshaping(nn.Module):
    """Written for a batch of 8 samples."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).reshape(8, 8)).sum(0)


def normed():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))


@pytest.mark.parametrize("costs", ["estimate", "measure"])
def test_one_sample_has_no_variance(costs):
    """BatchNorm in training takes two samples or more."""
    found = plan(normed(), torch.randn(8, 8), 2, costs=costs, pipeline_parallel_degree=2)

    assert found.num_microbatches in (1, 2, 4)
    assert ["Microbatches of 1 sample were not tried"] == [
        note.text.partition(":")[0] for note in found.notes if note.kind == "untried_size"
    ]


def test_a_size_that_is_written_into_the_model():
    """The whole batch is the only microbatch."""
    found = plan(Reshaping(), torch.randn(8, 8), 2, costs="estimate")

    assert 1 == found.num_microbatches
    assert 3 == sum(note.kind == "untried_size" for note in found.notes)


def test_a_size_that_was_chosen_is_refused():
    with pytest.raises(SizeError) as caught:
        plan(normed(), torch.randn(8, 8), 2, costs="estimate", microbatches=8)

    error = caught.value
    assert (("microbatches",), "size", 8) == (error.about, error.kind, error.num_microbatches)


def sized(limit=None):
    batch = Batch.of(torch.randn(64, 256))
    model = nn.Sequential(nn.Linear(256, 8), nn.Linear(8, 4096))
    options = {"cluster": Cluster(), "costs": "measure", "memory_bytes": limit}
    return Sampler(model=model, batch=batch, **options)


def test_sizes_beyond_the_limit_are_not_measured(monkeypatch):
    """64 samples give 1 MiB; one sample tells."""
    source = sized(limit=2**19)
    source.at(64, frozenset())
    monkeypatch.setattr(sampler, "measure", None)

    with pytest.raises(SizeError) as caught:
        source.at(1, frozenset())

    assert ("memory", 1) == (caught.value.kind, caught.value.num_microbatches)
    assert (
        "Sequential cannot be planned with microbatches of 64 of your 64 samples: a unit would need"
        " 1.00 MiB, and device_memory is 512 KiB. Pass another number as microbatches=; fewer"
        " microbatches have more samples each."
    ) == str(caught.value)


def test_sizes_beyond_this_machine_are_not_measured(monkeypatch):
    source = sized()
    source.at(64, frozenset())
    monkeypatch.setattr(sampler, "measure", None)
    monkeypatch.setattr(sampler, "free_bytes", lambda _: 2**20)

    with pytest.raises(SizeError) as caught:
        source.at(1, frozenset())

    assert ("machine_memory", 1) == (caught.value.kind, caught.value.num_microbatches)


def test_a_size_that_runs_out_of_memory_is_left_out(monkeypatch):
    """The others are planned with."""

    def scarce(captured, **options):
        if len(captured.example) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return measure(captured, **options)

    monkeypatch.setattr(sampler, "measure", scarce)
    found = plan(normed().eval(), torch.randn(16, 8), 2, pipeline_parallel_degree=2)

    assert found.num_microbatches >= 4
    untried = [note.text for note in found.notes if note.kind == "untried_size"]
    assert any("16 samples were not tried: this machine has too little" in text for text in untried)


def test_where_no_size_can_be_measured_the_smallest_is_named(monkeypatch):
    def never(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(sampler, "measure", never)
    with pytest.raises(SizeError) as caught:
        plan(normed().eval(), torch.randn(4, 8), 2)

    assert ("machine_memory", 4) == (caught.value.kind, caught.value.num_microbatches)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (MemoryError(), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory(error, is_it):
    assert is_it == is_out_of_memory(error)


def test_a_model_without_room_is_refused_before_it_is_measured(monkeypatch):
    """16 bytes a parameter on all ranks together."""
    monkeypatch.setattr(make_plan, "find_plan", None)
    with pytest.raises(OptionError) as caught:
        plan(nn.Linear(256, 256), torch.randn(4, 256), 2, device_memory="128KiB", costs="measure")

    assert (("device_memory",), "memory") == (caught.value.about, caught.value.kind)
    assert (
        "device_memory is 128 KiB: no plan fits, since weights, gradients and optimizer state of"
        " Linear take 1.00 MiB, and 2 ranks have 256 KiB together. Use 9 or more ranks in a"
        " pipeline, or an optimizer with less state."
    ) == str(caught.value)


def test_all_measurements_share_their_seconds(monkeypatch):
    """Measurements after a minute are done once; progress lines have titles."""
    given = []

    def noted(captured, **options):
        given.append((options["budget_seconds"], options["title"]))
        return measure(captured, **options)

    monkeypatch.setattr(sampler, "measure", noted)
    source = sized()
    source.at(64, frozenset())
    source.at(32, frozenset(["1"]))
    (first, title), (second, other) = given

    assert 60 > first > second
    assert ("microbatches of 1", "microbatches of 2, opened 1") == (title, other)


def test_notes_outlive_a_forecast():
    """A forecast of an unedited plan keeps its notes."""
    cluster = Cluster(ranks_per_host=2, device=KNOWN)
    found = plan(Reshaping(), torch.randn(8, 8), cluster, costs="estimate")
    again = forecast(found, Reshaping(), torch.randn(8, 8), cluster, costs="estimate")

    assert found.notes
    assert set(found.notes) == set(again.notes)


def test_notes_that_no_longer_hold_go():
    """The cluster says now how fast its devices are, and how much memory they have."""
    found = plan(normed(), torch.randn(8, 8), 2, costs="estimate")
    fast = Device(name="fast", flops_per_second=1e12, bytes_per_second=1e11, memory_bytes=2**30)
    cluster = Cluster(ranks_per_host=2, device=fast)
    again = forecast(found, normed(), torch.randn(8, 8), cluster, costs="estimate")

    unknown = {"unknown_speed", "unknown_memory"}

    assert unknown <= {note.kind for note in found.notes}
    assert unknown.isdisjoint(note.kind for note in again.notes)
