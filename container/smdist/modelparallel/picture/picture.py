# SPDX-License-Identifier: Apache-2.0
"""A drawn plan or run: a file, or an image where a notebook shows it."""

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
    """One sheet, drawn.

    Attributes:
        figure: Matplotlib's, to be changed or put elsewhere.

    Raises:
        SetupError: There is no matplotlib.
    """

    def __init__(self, sheet: Sheet | RunSheet) -> None:
        self.figure: Figure = draw_run(sheet) if isinstance(sheet, RunSheet) else draw(sheet)

    def save(self, path: str | Path) -> None:
        """Write it as the path's ending says: .png, .svg, .pdf.

        Raises:
            OptionError: The ending is no picture's, or the file cannot be written.
        """
        check_path(Path(path))
        try:
            self.figure.savefig(path)
        except OSError as error:
            mend = "Pass a path in a folder that is writable"
            raise OptionError(f"{path} cannot be written", str(error), mend) from error

    def _repr_png_(self) -> bytes:
        """What notebooks show."""
        held = BytesIO()
        self.figure.savefig(held, format="png")
        return held.getvalue()


def check_path(path: Path) -> None:
    """Refuse early what cannot become a picture: plans may take minutes.

    Raises:
        OptionError: The ending is no picture's, or there is no such folder.
        SetupError: There is no matplotlib.
    """
    figure_class()
    if path.suffix not in _ENDINGS:
        why = f"a picture's name ends with one of {', '.join(_ENDINGS)}"
        raise OptionError(f"{path} cannot be drawn", why, "Call it plan.png")
    if not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
        raise OptionError(f"{path} cannot be written", why, "Make it, or pass another path")
