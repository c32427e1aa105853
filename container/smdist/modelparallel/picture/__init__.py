# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans and of recorded runs, drawn with matplotlib.

Matplotlib is imported when the first picture is drawn.
"""

from smdist.modelparallel.picture.picture import Picture, check_path
from smdist.modelparallel.picture.plan_sheet import sheet_of
from smdist.modelparallel.picture.run_sheet import sheet_of_run

__all__ = ["Picture", "check_path", "sheet_of", "sheet_of_run"]
