# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m sagemaker_dist.cli`."""

import sys

from sagemaker_dist.cli import main

sys.exit(main())
