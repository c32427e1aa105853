# SPDX-License-Identifier: Apache-2.0
"""Times are those of a simulator that goes by a clock, for any edges, costs and links."""

from clock import Pipeline
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import cost, edge

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.schedule import SCHEDULES, make_schedule
from smdist.modelparallel.core.simulate import simulate

FEW = st.integers(0, 9)


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    kind = SCHEDULES[name]
    ranks = draw(st.integers(1, 4))
    most = min(3, kind.most_virtual_stages or 3)
    return make_schedule(
        name,
        num_ranks=ranks,
        num_microbatches=draw(st.integers(max(1, kind.least_microbatches_per_rank * ranks), 9)),
        virtual_stages=draw(st.integers(kind.least_virtual_stages, most)),
    )


@st.composite
def edges_between(draw, num_stages):
    pairs = [(s, t) for s in range(num_stages) for t in range(s + 1, num_stages)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    return [
        edge(source, target, draw(FEW), has_gradient=draw(st.booleans()))
        for source, target in sorted(chosen)
    ]


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_a_clock_says_the_same(data):
    schedule = data.draw(schedules())
    edges = data.draw(edges_between(schedule.num_stages))
    latencies = data.draw(st.lists(FEW, min_size=16, max_size=16))
    stages = [
        cost(data.draw(FEW), data.draw(FEW), data.draw(FEW)) for _ in range(schedule.num_stages)
    ]

    def link(rank, other):
        return Link(latency_seconds=latencies[4 * rank + other], bytes_per_second=1 + rank % 2)

    timeline = simulate(schedule, stages, edges=edges, link=link)
    if not edges:
        edges = [edge(stage, stage + 1) for stage in range(schedule.num_stages - 1)]
    by_clock = Pipeline(schedule, stages, edges, link)

    assert by_clock.ends == {event.action: event.end for event in timeline.events()}
