# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans. Matplotlib is needed only here, and only when something is drawn."""

from smdist.modelparallel.picture.of_plan import sheet_of
from smdist.modelparallel.picture.picture import Picture, check_path

__all__ = ["Picture", "check_path", "sheet_of"]
