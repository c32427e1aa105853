# SPDX-License-Identifier: Apache-2.0
"""One step runs functions of few files, so that a reader can follow it.

docs/architecture.md lists these files ("One pipeline step").
"""

import sys
from pathlib import Path

import pytest
from smp_nets import batch, net, start, train_step

import smdist
import smdist.modelparallel.torch as smp

MOST_FILES = 20
PRODUCT = Path(smdist.__file__).parent
ROOT = Path(__file__).parents[5]


def files_called(function):
    """Return the paths, relative to `smdist`, of the files in which a call runs functions."""
    found = set()

    def note_file(frame, event, _):
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note_file)
    try:
        function()
    finally:
        sys.setprofile(None)
    paths = [Path(name) for name in found]
    return {str(path.relative_to(PRODUCT)) for path in paths if path.is_relative_to(PRODUCT)}


def files_of_the_third_step(rank, size, pipeline):
    """Return the files of one step after the model is cut and all captures exist."""
    start(pipeline)
    model = smp.parallelize(net(), costs="estimate")
    for _ in range(2):
        train_step(model, *batch())
    return files_called(lambda: train_step(model, *batch()))


@pytest.mark.parametrize(("size", "pipeline"), [(2, 2), (4, 2)])
def test_one_step_on_one_rank_crosses_at_most_twenty_files_all_of_them_in_the_drawing(
    world, size, pipeline
):
    drawing = (ROOT / "docs" / "architecture.md").read_text()

    for files in world.run(files_of_the_third_step, pipeline, size=size):
        assert len(files) <= MOST_FILES, "\n".join(sorted(files))
        assert [] == [file for file in sorted(files) if f"`container/smdist/{file}`" not in drawing]
