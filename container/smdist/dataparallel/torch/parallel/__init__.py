# SPDX-License-Identifier: Apache-2.0
"""Location from which scripts for SMDDP 1.0 to 1.3 import DistributedDataParallel."""
