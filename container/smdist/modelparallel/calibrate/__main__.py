# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m smdist.modelparallel.calibrate`."""

import sys

from smdist.modelparallel.calibrate.measurement_command import main

sys.exit(main())
