# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m smdist.modelparallel.compare`."""

import sys

from smdist.modelparallel.compare.comparison_command import main

sys.exit(main())
