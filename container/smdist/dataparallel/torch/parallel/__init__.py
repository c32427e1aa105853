# SPDX-License-Identifier: Apache-2.0
"""Package from which scripts for SMDDP 1.0 to 1.3 import DistributedDataParallel."""
