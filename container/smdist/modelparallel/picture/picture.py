# SPDX-License-Identifier: Apache-2.0
"""A drawn plan: a file, or an image where a notebook shows it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.picture.draw import draw
from smdist.modelparallel.picture.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture:
    """One sheet, drawn.

    Attributes:
        figure: Matplotlib's, to be changed or put elsewhere.

    Raises:
        SetupError: There is no matplotlib.
    """

    def __init__(self, sheet: Sheet) -> None:
        self.figure: Figure = draw(sheet)

    def save(self, path: str | Path) -> None:
        """Write it as the path's ending says: .png, .svg, .pdf.

        Raises:
            OptionError: The ending is no picture's, or the file cannot be written.
        """
        path = Path(path)
        known = sorted(self.figure.canvas.get_supported_filetypes())
        if path.suffix.removeprefix(".") not in known:
            raise OptionError(
                f"{path} cannot be drawn",
                f"a picture's name ends with one of .{', .'.join(known)}",
                "Call it plan.png",
            )
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
