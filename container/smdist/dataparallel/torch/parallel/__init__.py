# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel where scripts of SMDDP 1.0 to 1.3 import it from."""
