# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans: what is on them, for 2 to 64 ranks, and that nothing overlaps."""

import subprocess
import sys
from itertools import combinations

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.plan.number_format import size_unit, time_unit
from smdist.modelparallel.core.schedule import make_schedule
from smdist.modelparallel.core.schedule.actions import Do
from smdist.modelparallel.core.simulate import simulate
from smdist.modelparallel.picture import Picture
from smdist.modelparallel.picture.module_labels import shortened
from smdist.modelparallel.picture.palette import ACTIONS, tinted
from smdist.modelparallel.picture.sheet import MemoryBar, Sheet, Span, StageBar, UnitBar
from smdist.modelparallel.torch.planning.make_plan import plan

GIB = 2**30
COST = NodeCost(forward_seconds=1, input_gradient_seconds=1, weight_gradient_seconds=1)


def sheet(
    ranks, *, name="1f1b", microbatches=None, virtual=1, limit=16 * GIB, reduced=0.0, between=0.0,
    large="large",
):  # fmt: skip
    """A plan of equal stages, each of a small unit and a large one."""
    schedule = make_schedule(
        name, num_ranks=ranks, num_microbatches=microbatches or 2 * ranks, virtual_stages=virtual
    )
    timeline = simulate(schedule, [COST] * schedule.num_stages)
    spans = [
        Span(
            rank=each.rank,
            do=each.action.do,
            chunk=each.action.stage // ranks,
            microbatch=each.action.microbatch,
            start=each.start,
            end=each.end,
        )
        for each in timeline.events()
    ]
    end = timeline.pipeline_seconds
    if reduced:
        spans += [
            Span(rank=rank, do=None, chunk=0, microbatch=0, start=end, end=end + reduced)
            for rank in range(ranks)
        ]
    return Sheet(
        title=f"Net on {ranks} ranks, {schedule.num_stages} stages, schedule {name}",
        subtitle="step 36.3 ms, 440.5 samples/s, ranks wait 24.3% of the pipeline's time",
        largest="transformer.blocks.0.large",
        stages=tuple(
            StageBar(
                rank=schedule.rank_of[stage],
                units=(
                    UnitBar(name=f"transformer.blocks.{stage}.small", seconds=0.001),
                    UnitBar(name=f"transformer.blocks.{stage}.{large}", seconds=0.003),
                ),
                between_seconds=between,
            )
            for stage in range(schedule.num_stages)
        ),
        memory=tuple(
            MemoryBar(
                state_bytes=6 * GIB,
                activation_bytes=5 * GIB // (rank + 1),
                receive_bytes=GIB // 8,
                workspace_bytes=GIB // 4,
            )
            for rank in range(ranks)
        ),
        limit_bytes=limit,
        spans=tuple(spans),
    )


def texts(figure):
    """All words on paper with their boxes, but for the ticks."""
    FigureCanvasAgg(figure).draw()
    found = list(figure.texts)
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [*axes.texts, *legend.get_texts(), legend.get_title()]
        found += [axes.xaxis.label, axes.yaxis.label, axes._left_title]
    return [(each.get_text(), each.get_window_extent()) for each in found if each.get_text()]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (4, {"name": "zero_bubble", "reduced": 3.0}),
        (8, {"name": "interleaved_1f1b", "virtual": 2}),
        (16, {"limit": None, "between": 0.001}),
        (8, {"name": "1f1b", "microbatches": 16, "large": "mixture_of_attention"}),
        pytest.param(64, {"microbatches": 64}, marks=pytest.mark.slow),
    ],
)
def test_words_do_not_overlap(ranks, options):
    """Titles, legends, labels and numbers each have their own place, within the paper."""
    figure = Picture(sheet(ranks, **options)).figure
    found = texts(figure)
    paper = figure.bbox
    outside = [
        words
        for words, box in found
        if box.x0 < 0 or box.y0 < 0 or box.x1 > paper.x1 or box.y1 > paper.y1
    ]
    touching = [
        (one, other) for (one, box), (other, beside) in combinations(found, 2) if _meet(box, beside)
    ]

    assert [] == outside
    assert [] == touching


def _meet(box, other):
    shrunk = 0.5  # points: boxes of neighbours may touch
    return (
        box.x0 + shrunk < other.x1
        and other.x0 + shrunk < box.x1
        and box.y0 + shrunk < other.y1
        and other.y0 + shrunk < box.y1
    )


def test_numbers_stand_in_their_bars():
    """Each microbatch is numbered where its bar is wide enough for the number."""
    figure = Picture(sheet(4)).figure
    step = figure.axes[2]
    numbers = sorted(int(text.get_text()) for text in step.texts)

    assert sorted([*range(8)] * 8) == numbers


@pytest.mark.slow
def test_numbers_are_left_out_where_bars_are_thin():
    """Of 64 ranks and 256 microbatches none is numbered."""
    figure = Picture(sheet(64, microbatches=256)).figure

    assert [] == list(figure.axes[2].texts)


def test_all_microbatches_are_numbered():
    """Two digits take more room than one: where they do not fit, all numbers are smaller."""
    step = Picture(sheet(2, microbatches=32)).figure.axes[2]

    assert set(range(32)) == {int(text.get_text()) for text in step.texts}
    assert 1 == len({text.get_fontsize() for text in step.texts})


@pytest.mark.parametrize(
    "ranks", [2, 12, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (8, 16, 24))]
)
def test_names_stand_in_their_bars(ranks):
    """A name that does not fit is left out, not cut."""
    figure = Picture(sheet(ranks, large="mixture_of_mamba")).figure
    FigureCanvasAgg(figure).draw()
    stages = figure.axes[0]
    boxes = {text: text.get_window_extent() for text in stages.texts if text.get_text()}
    bars = [bar.get_window_extent() for bar in stages.patches]

    assert not any("…" in text.get_text() for text in boxes)
    assert all(
        any(bar.x0 <= box.x0 and box.x1 <= bar.x1 and bar.y0 <= box.y0 for bar in bars)
        for box in boxes.values()
    )
    assert boxes or ranks > 12


def test_what_is_between_units_is_drawn():
    """Bars are as high as their stage."""
    stages = Picture(sheet(2, between=0.002)).figure.axes[0]
    words = [text.get_text() for text in stages.get_legend().get_texts()]

    assert "between units" in words
    assert "mean 6 ms" in words
    assert 6.0 == pytest.approx(max(_top(bar) for bar in stages.patches))


class Halves(nn.Module):
    """Half of what it takes is outside of its units."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for part in self.parts:
            x = part(x).sin().cos().tanh()
        return x


def test_a_plan_is_drawn_as_it_is_explained():
    """Bars add up to the forecast's seconds; waiting is part of the pipeline's time in both."""
    with torch.device("meta"):
        model = Halves()
    found = plan(model, torch.zeros(8, 64), 2, pipeline_parallel_degree=2)
    figure = found.plot().figure
    stages = figure.axes[0]
    tops = {round(bar.get_x() + bar.get_width() / 2): _top(bar) for bar in stages.patches}
    scale = time_unit(max(stage.seconds for stage in found.forecast.stages))[0]
    subtitle = figure.texts[1].get_text()

    assert [stage.seconds / scale for stage in found.forecast.stages] == [
        pytest.approx(tops[stage]) for stage in range(2)
    ]
    assert f"ranks wait {found.forecast.bubble_fraction:.1%} of the pipeline's time" in subtitle


def test_stages_and_memory_are_drawn_as_they_are():
    """Bars add up to what the plan says, in the unit of the axis."""
    stages, memory, _ = Picture(sheet(4)).figure.axes
    tops = {round(bar.get_x() + bar.get_width() / 2): _top(bar) for bar in stages.patches}
    held = {round(bar.get_x() + bar.get_width() / 2): _top(bar) for bar in memory.patches}

    assert ("ms", "GiB") == (stages.get_ylabel(), memory.get_ylabel())
    assert [4.0] * 4 == [pytest.approx(tops[stage]) for stage in range(4)]
    assert [11.375, 8.875, 6.375 + 5 / 3, 7.625] == [pytest.approx(held[each]) for each in range(4)]


def _top(bar):
    return bar.get_y() + bar.get_height()


@pytest.mark.parametrize(
    ("limit", "said"), [(16 * GIB, "limit 16 GiB"), (80 * GIB, "limit 80 GiB (above)")]
)
def test_limit(limit, said):
    """It is drawn, unless it lies so far above that the bars would be flat."""
    memory = Picture(sheet(4, limit=limit)).figure.axes[1]
    words = [text.get_text() for text in memory.get_legend().get_texts()]

    assert said in words
    assert memory.get_ylim()[1] < 25


def test_no_limit():
    memory = Picture(sheet(2, limit=None)).figure.axes[1]

    assert not any("limit" in text.get_text() for text in memory.get_legend().get_texts())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ["F: forward", "B: backward"]),
        (
            {"name": "zero_bubble", "reduced": 1.0},
            [
                "F: forward",
                "I: gradients of inputs",
                "W: gradients of weights",
                "sum of gradients",
            ],
        ),
    ],
)
def test_legend_has_what_is_drawn(options, said):
    step = Picture(sheet(4, **options)).figure.axes[2]

    assert said == [text.get_text() for text in step.get_legend().get_texts()]


def test_largest_unit_stands_out():
    """By colour and by name."""
    stages = Picture(sheet(2)).figure.axes[0]
    words = [text.get_text() for text in stages.get_legend().get_texts()]

    assert "transformer.blocks.0.large, the largest" in words


def _seen(colour, matrix):
    """As people without one kind of cones see it (Viénot 1999, on linear light)."""
    return [
        sum(part * value**2.2 for part, value in zip(row, colour, strict=True)) for row in matrix
    ]


@pytest.mark.parametrize(
    "matrix",
    [
        ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),  # no red
        ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),  # no green
    ],
)
def test_colours_are_told_apart(matrix):
    """The four kinds of actions, by any eye, and a rank's first stage from its last."""
    faces = [_seen(tinted(ACTIONS[do], 0.0), matrix) for do in Do]
    paler = [_seen(tinted(ACTIONS[do], 1.0), matrix) for do in Do]
    pairs = [*combinations(faces, 2), *zip(faces, paler, strict=True)]
    nearest = min(
        sum((one - other) ** 2 for one, other in zip(*pair, strict=True)) for pair in pairs
    )

    assert nearest > 0.02


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_files(tmp_path, ending):
    """The ending says what it is."""
    path = tmp_path / f"plan.{ending}"
    Picture(sheet(2)).save(path)

    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    "path", ["plan.txt", "plan.jpg", "plan.svgz", "plan", "no/such/folder/plan.png"]
)
def test_files_that_cannot_be(tmp_path, path):
    with pytest.raises(OptionError, match=r"cannot be (drawn|written)"):
        Picture(sheet(2)).save(tmp_path / path)


def test_notebooks_show_it():
    """By the method that they look for."""
    assert Picture(sheet(2))._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib():
    """Plans are made without it; drawing one says how to get it."""
    code = (
        "import sys; sys.modules['matplotlib'] = None;"
        " from smdist.modelparallel.picture.draw import draw;"
        " from smdist.modelparallel.picture.sheet import Sheet;"
        " draw(Sheet(title='', subtitle='', largest='', stages=(), memory=(), limit_bytes=None,"
        " spans=()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "SetupError: the plan cannot be drawn: matplotlib is not installed" in done.stderr
    assert "pip install matplotlib" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "unit"), [(90, "s"), (1, "s"), (0.02, "ms"), (2e-5, "µs"), (3e-9, "ns"), (0, "s")]
)
def test_units_of_time(seconds, unit):
    assert unit == time_unit(seconds)[1]


@pytest.mark.parametrize(
    ("size", "unit"), [(0, "bytes"), (1023, "bytes"), (1024, "KiB"), (GIB, "GiB"), (2**42, "TiB")]
)
def test_units_of_memory(size, unit):
    assert unit == size_unit(size)[1]


@pytest.mark.parametrize(
    ("name", "room", "said"),
    [
        ("model.blocks.11", 15, "model.blocks.11"),
        ("model.blocks.11", 14, "blocks.11"),
        ("model.blocks.11", 8, "11"),
        ("head.attention", 6, "…ntion"),
        ("blocks.11", 1, ""),
    ],
)
def test_names_keep_their_ends(name, room, said):
    """A number at the end tells layers apart."""
    assert said == shortened(name, room)
