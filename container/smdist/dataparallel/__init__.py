# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: one all-reduce engine under every framework."""
