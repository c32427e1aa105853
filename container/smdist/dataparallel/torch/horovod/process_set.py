# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that run collectives of torch tensors without the others."""

from __future__ import annotations

from typing import Final

from smdist.dataparallel.process_sets import ProcessSet

__all__ = ["ProcessSet", "global_process_set"]

global_process_set: Final = ProcessSet([])
