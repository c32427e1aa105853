# SPDX-License-Identifier: Apache-2.0
"""People hear of a long measurement, and of a short one nothing."""

import pytest

from smdist.modelparallel.torch.measure import parts
from smdist.modelparallel.torch.measure.parts import MeasureProgress


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(parts, "_SILENT_SECONDS", 0.0)


def test_a_short_measurement_says_nothing(capsys):
    progress = MeasureProgress(10, "measured")
    progress.report(3, "h.0")
    progress.close(4)

    assert "" == capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
def test_a_long_one_says_how_far_it_is(capsys):
    """A line for a file; the next comes after a while."""
    progress = MeasureProgress(10, "measured")
    progress.report(3, "h.0")
    progress.report(4, "h.1")

    assert "measured 3 of 10 parts of the model; next is h.0\n" == capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
def test_a_terminal_has_one_line_that_is_cleared(capsys, monkeypatch):
    monkeypatch.setattr(parts.sys.stderr, "isatty", lambda: True)
    progress = MeasureProgress(10, "measured")
    progress.report(3, "h.0")
    progress.close(4)
    written = capsys.readouterr().err

    assert "\n" not in written
    assert written.endswith("\r\x1b[K")
