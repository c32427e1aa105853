# SPDX-License-Identifier: Apache-2.0
"""The models that tests use, for benchmarks: tests/support is no package that is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import zoo

__all__ = ["zoo"]
