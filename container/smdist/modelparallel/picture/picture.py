# SPDX-License-Identifier: Apache-2.0
"""Picture of a plan or of a run, which can be saved as a file or shown in a notebook."""

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
    """Picture of a plan or of a recorded run, drawn with matplotlib.

    Attributes:
        figure: Matplotlib figure, which callers may change.

    Raises:
        SetupError: matplotlib is not installed.
    """

    def __init__(self, sheet: Sheet | RunSheet) -> None:
        self.figure: Figure = draw_run(sheet) if isinstance(sheet, RunSheet) else draw(sheet)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file whose suffix is the format: .png, .svg or .pdf.

        Raises:
            OptionError: The suffix is not .png, .svg or .pdf, or the file cannot be written.
        """
        check_path(Path(path))
        try:
            self.figure.savefig(path)
        except OSError as error:
            hint = "Pass a path in a writable folder"
            what = f"{path} cannot be written"
            raise OptionError(what, str(error), hint, about="path") from error

    def _repr_png_(self) -> bytes:
        """Return the picture as PNG, which a notebook shows."""
        png = BytesIO()
        self.figure.savefig(png, format="png")
        return png.getvalue()


def check_path(path: Path) -> None:
    """Check that a picture can be written to a path.

    Call this before a long computation whose result will be drawn.

    Raises:
        OptionError: The suffix is not .png, .svg or .pdf, or the folder does not exist.
        SetupError: matplotlib is not installed.
    """
    figure_class()
    if path.suffix not in _ENDINGS:
        what, why = (
            f"{path} cannot be written",
            f"{path.suffix or 'no suffix'} is no picture format",
        )
        hint = f"Pass a file name with one of the suffixes {', '.join(_ENDINGS)}"
        raise OptionError(what, why, hint, about="path")
    if not path.parent.is_dir():
        why = f"the folder {path.parent} does not exist"
        hint = "Create the folder, or pass another path"
        raise OptionError(f"{path} cannot be written", why, hint, about="path")
