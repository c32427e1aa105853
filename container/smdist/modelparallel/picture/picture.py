# SPDX-License-Identifier: Apache-2.0
"""The picture of a plan or of a run: saved as a file, or shown by a notebook."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.picture.draw import draw, draw_run, figure_class
from smdist.modelparallel.picture.sheet import RunSheet, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENDINGS: Final = (".png", ".svg", ".pdf")


class Picture:
    """One drawn picture.

    Attributes:
        figure: The matplotlib figure; callers may change it.

    Raises:
        SetupError: matplotlib is not installed.
    """

    def __init__(self, sheet: Sheet | RunSheet) -> None:
        self.figure: Figure = draw_run(sheet) if isinstance(sheet, RunSheet) else draw(sheet)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; the suffix chooses the format: .png, .svg or .pdf.

        Raises:
            OptionError: The suffix is none of these, or the file cannot be written.
        """
        check_path(Path(path))
        try:
            self.figure.savefig(path)
        except OSError as error:
            hint = "Pass a path in a folder that is writable"
            raise OptionError(f"{path} cannot be written", str(error), hint) from error

    def _repr_png_(self) -> bytes:
        """Return the PNG bytes that a notebook shows."""
        held = BytesIO()
        self.figure.savefig(held, format="png")
        return held.getvalue()


def check_path(path: Path) -> None:
    """Check a path before the plan is made, which may take minutes.

    Raises:
        OptionError: The suffix is not a picture's, or the folder does not exist.
        SetupError: matplotlib is not installed.
    """
    figure_class()
    if path.suffix not in _ENDINGS:
        why = f"a picture's name ends with one of {', '.join(_ENDINGS)}"
        raise OptionError(f"{path} cannot be drawn", why, "Call it plan.png")
    if not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
        raise OptionError(f"{path} cannot be written", why, "Make it, or pass another path")
