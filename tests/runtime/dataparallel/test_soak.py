# SPDX-License-Identifier: Apache-2.0
"""The soak finds growth where there is some, and its short form finds none."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.growth import growth

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        ([10.0] * 100, False),
        ([100.0] * 30 + [10.0] * 70, False),  # what the warm-up held is no growth
        ([0.0] * 25 + [50.0] * 75, False),  # what the warm-up took is none, either
        ([10.0 + 0.1 * number for number in range(100)], True),
        ([10.0 + 3 * (number % 2) for number in range(100)], False),
    ],
)
def test_growth_after_the_warm_up(values, grows):
    found = growth(range(100), values, limit=3.0)

    assert grows == found.is_too_much


def test_a_few_samples_are_no_line():
    assert growth([0, 1, 2], [1.0, 2.0, 3.0], limit=1.0) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_half_a_minute_of_the_soak():
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.5", "--no-page"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)

    assert 0 == done.returncode, done.stdout + done.stderr
