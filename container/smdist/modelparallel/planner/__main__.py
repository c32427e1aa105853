# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m smdist.modelparallel.planner`."""

import sys

from smdist.modelparallel.planner.command import main

sys.exit(main())
