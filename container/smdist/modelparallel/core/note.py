# SPDX-License-Identifier: Apache-2.0
"""Notes of a plan, for users and for programs.

A note has a text for users, and a kind by which programs recognize it without reading the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BOTTLENECK: Final = "bottleneck"
"""Kind of a note: one unit takes so long that more ranks give no speedup."""
FEW_MICROBATCHES: Final = "few_microbatches"
"""Kind of a note: ranks wait long because there are few microbatches."""
IGNORED_MARKS: Final = "ignored_marks"
"""Kind of a note: the planner placed units, so the user's marks on modules had no effect."""
MOVED_UNIT: Final = "moved_unit"
"""Kind of a note: a unit was moved to the stage of another unit that has the same parameter."""
NOT_SEARCHED: Final = "not_searched"
"""Kind of a note: the search of a job left an option as it was given, which `plan` searches."""
OTHER: Final = "other"
"""Kind of a note: read from a plan file of an earlier release, which wrote no kinds."""
UNCUT_MODULE: Final = "uncut_module"
"""Kind of a note: a module's forward pass cannot be recorded, so the module is not split."""
UNKNOWN_MEMORY: Final = "unknown_memory"
"""Kind of a note: the memory of a rank is not known, so no plan was refused for lack of memory."""
UNKNOWN_SPEED: Final = "unknown_speed"
"""Kind of a note: the device's speed is not known, so times are estimated for another device."""
UNTRIED_SIZE: Final = "untried_size"
"""Kind of a note: no plan has microbatches of a size that failed or needs too much memory."""


@dataclass(frozen=True, slots=True)
class Note:
    """Note on how a plan was made, or on how a plan could become faster.

    Attributes:
        kind: Kind of the note, such as "unknown_speed". Programs recognize a note by its kind.
        text: Sentence for users.
        about: Name of the module, unit or option that the note is about; "" if it is about the
            whole plan.
    """

    kind: str
    text: str
    about: str = ""

    def __str__(self) -> str:
        return self.text
