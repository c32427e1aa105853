# SPDX-License-Identifier: Apache-2.0
"""Models of the tests, for benchmarks; tests/support is not an installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import zoo

__all__ = ["zoo"]
