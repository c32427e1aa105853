# SPDX-License-Identifier: Apache-2.0
"""Choice of layouts: those of experts where they fit, and errors that say what would fit."""

import pytest
from layout_cases import GIB, llama_7b, p4d

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout import TrainingNeeds, find_layout
from smdist.modelparallel.core.plan_errors import PlanMemoryError


def test_llama_7b_on_two_hosts_is_sharded_inside_each_host():
    """Where each microbatch reduces, shards stay in a host, with 13 GiB of state and no bubble."""
    needs = TrainingNeeds(global_batch=256, reduction="microbatch")
    best = find_layout(llama_7b(), p4d(2), needs).best

    assert best.layout.family == "hybrid full shards"
    assert best.layout.shard_degree == 8
    assert best.layout.num_microbatches > 1
    assert best.memory.state == pytest.approx(12.6 * GIB, rel=0.01)
    assert best.time.bubble == 0


def test_whole_gradients_leave_no_room_for_full_shards_inside_a_host():
    """Reduced at the end of a step, 7 billion gradients take 25 GiB on every rank."""
    search = find_layout(llama_7b(), p4d(2), TrainingNeeds(global_batch=256))

    assert "hybrid full shards" in {each.layout.family for each in search.misfits}
    assert all(each.memory.total <= 36 * GIB for each in search.families)


def test_each_family_has_its_fastest_layout():
    """The best is first, and no family appears twice or both fits and does not."""
    search = find_layout(llama_7b(), p4d(1), TrainingNeeds(global_batch=64))
    fitting = [each.layout.family for each in search.families]
    full = [each.layout.family for each in search.misfits]

    assert search.best is search.families[0]
    assert len(set(fitting + full)) == len(fitting + full)


def test_parts_of_a_step_add_up():
    """The step is the sum of its parts, and its range includes it."""
    for each in find_layout(llama_7b(), p4d(1), TrainingNeeds(global_batch=64)).families:
        parts = each.time
        assert each.low_seconds < each.step_seconds < each.high_seconds
        assert min(getattr(parts, name) for name in parts.__dataclass_fields__) >= -1e-9


def test_a_model_that_fits_nowhere_says_what_would():
    """The error names the leanest layout's need, and a device or a number of hosts that has it."""
    with pytest.raises(PlanMemoryError) as caught:
        find_layout(llama_7b(), p4d(1, memory_gib=2), TrainingNeeds(global_batch=64))

    assert caught.value.least_bytes > 2 * GIB
    assert "device with" in caught.value.hint


def test_a_batch_that_no_degree_divides_is_an_error():
    """A batch of 1 sample on 16 ranks has layouts with one replica; fixed replicas have none."""
    needs = TrainingNeeds(global_batch=3, pipeline=1, tensor=1)
    with pytest.raises(OptionError) as caught:
        find_layout(llama_7b(), p4d(2), needs)

    assert caught.value.kind == "indivisible"


def test_all_faults_of_needs_are_reported_at_once():
    """A wrong batch, precision of reductions and margin are three faults of one error."""
    with pytest.raises(OptionError) as caught:
        TrainingNeeds(global_batch=0, reduction="never", memory_margin=-1.0)

    assert len(caught.value.faults) == 3
