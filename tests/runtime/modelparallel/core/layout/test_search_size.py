# SPDX-License-Identifier: Apache-2.0
"""Time and memory of a search over a large cluster."""

import resource
import time

import pytest
from layout_cases import p4d

from smdist.modelparallel.core.layout import (
    TrainingNeeds,
    TransformerConfig,
    find_layout,
    transformer,
)

GIB_IN_KIB = 1 << 20


@pytest.mark.slow
def test_a_hundred_layers_on_1024_ranks_take_under_30_seconds():
    """98 blocks, embedding and output on 128 hosts: processor time of one core, and 2 GiB."""
    config = TransformerConfig(
        name="180B",
        num_layers=98,
        hidden=12288,
        heads=96,
        kv_heads=96,
        ffn=49152,
        vocabulary=51200,
        sequence=2048,
        is_gated=False,
    )
    start = time.process_time()
    search = find_layout(transformer(config), p4d(128), TrainingNeeds(global_batch=2048))

    assert time.process_time() - start < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * GIB_IN_KIB
    assert search.best.layout.world_size == 1024
    assert search.num_layouts > 50_000
