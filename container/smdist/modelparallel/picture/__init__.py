# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans and runs. Matplotlib is needed only here, and only when something is drawn."""

from smdist.modelparallel.picture.of_plan import sheet_of
from smdist.modelparallel.picture.of_run import sheet_of_run
from smdist.modelparallel.picture.picture import Picture, check_path

__all__ = ["Picture", "check_path", "sheet_of", "sheet_of_run"]
