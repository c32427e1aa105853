# SPDX-License-Identifier: Apache-2.0
"""Model parallelism: one model over several devices, split in balance and run as a pipeline."""
